/* Shifts the wall clock of a process that preloads it (LD_PRELOAD); see shifted_clock.py.
 *
 * SHIFTED_CLOCK_FILE names a file with a signed number of seconds, 8 bytes in the machine's
 * order, which may change at any time. Monotonic clocks stay.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static int (*machine_clock)(clockid_t, struct timespec *);
static const volatile int64_t *shift_s;

__attribute__((constructor)) static void map_shift(void)
{
    const char *path = getenv("SHIFTED_CLOCK_FILE");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    machine_clock = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    if (file >= 0) {
        void *mapped = mmap(NULL, sizeof *shift_s, PROT_READ, MAP_SHARED, file, 0);
        shift_s = mapped == MAP_FAILED ? NULL : mapped;
        close(file);
    }
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    if (!machine_clock)
        map_shift(); /* another library's constructor came first */
    int failed = machine_clock(clock, now);
    if (!failed && shift_s && clock == CLOCK_REALTIME)
        now->tv_sec += *shift_s;
    return failed;
}
