"""Read damaged records with the compiled readers: `python -m tests.fuzz.readers --inputs 1000000`.

It compiles a copy of the readers and writers first, with `--sanitize` such that the address
sanitizer watches each access to memory, and starts itself anew with them. Whatever a compiled
reader returns is compared with what fastavro reads. Exit code 1 if they differ, if the sanitizer
finds a fault, or if a process grew.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from native.modules import ROOMS
from sessionary.schemas.codec.compiled_helpers import generated_functions
from tests.chaos.process_watch import read_sample
from tests.fuzz.campaign import RunResult, find_growth, memory_growth
from tests.fuzz.reader_run import ReadCounts, ReaderRun

ROOT = Path(__file__).parents[2]
INPUTS_PER_RUN = 50_000
_ASAN = "-fsanitize=address"
_MIB = 1 << 20
# Bytes are freed at once, so that a later access is seen; the interpreter itself leaks at its end.
_ASAN_OPTIONS = "detect_leaks=0:abort_on_error=1:quarantine_size_mb=64"


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.readers", description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000, help="number of inputs")
    parser.add_argument("--seed", type=int, default=1, help="seed of the first run; each next run has the next one")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="default: one per core")
    parser.add_argument("--sanitize", action="store_true", help="with the address sanitizer of the C compiler")
    parser.add_argument("--folder", type=Path, help="where the copy is compiled; default: below build/native")
    parser.add_argument(
        "--here", action="store_true", help="with the readers that are imported, which must be compiled"
    )
    given = parser.parse_args(argv)
    if given.inputs <= 0 or given.processes <= 0:
        parser.error("--inputs and --processes must be greater than 0")
    return given


def main(argv: Sequence[str]) -> int:
    """Return the exit code."""
    options = _options(argv)
    return _read_all(options) if options.here else _start_with_copy(options, argv)


def _start_with_copy(options: argparse.Namespace, argv: Sequence[str]) -> int:
    """Compile a copy, and start this program with it."""
    kind = "sanitized" if options.sanitize else "codec"
    folder = options.folder or ROOT / "build" / "native" / kind
    tree, work = folder / "tree", folder / "work"
    flags = {"CFLAGS": f"{_ASAN} -fno-omit-frame-pointer -g"} if options.sanitize else {}
    build = [sys.executable, "-m", "native", "--codec-only", "--tree", str(tree), "--work", str(work)]
    if code := subprocess.run(build, cwd=ROOT, env={**os.environ, **flags}, check=False).returncode:
        return code
    path = os.pathsep.join(str(tree / room) for room in ROOMS)
    again = [sys.executable, "-X", "faulthandler", "-m", "tests.fuzz.readers", "--here", *argv]
    env = {**os.environ, "PYTHONPATH": path, **(_sanitizer_environment() if options.sanitize else {})}
    code = subprocess.run(again, cwd=ROOT, env=env, check=False).returncode
    if code < 0:
        _say(f"the readers ended the process by signal {-code}; the sanitizer or the fault handler says where")
    return 1 if code else 0


def _sanitizer_environment() -> Mapping[str, str]:
    """Return what lets the sanitizer watch an interpreter that was built without it."""
    library = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    # `malloc` for each object: the interpreter's own allocator would hide where objects end.
    return {"LD_PRELOAD": library.stdout.strip(), "ASAN_OPTIONS": _ASAN_OPTIONS, "PYTHONMALLOC": "malloc"}


def _read_all(options: argparse.Namespace) -> int:
    made = Path(f"{getattr(generated_functions(), '__file__', '')}")
    if made.suffix not in (".so", ".pyd"):
        _say(f"the readers that are imported are not compiled: {made}")
        return 2
    if options.sanitize and not _is_watched(made):
        _say(f"the address sanitizer does not watch {made}")
        return 2
    _say(f"readers: {made.name}{', watched by the address sanitizer' if options.sanitize else ''}")
    began_s, total, memory = time.monotonic(), ReadCounts(), RunResult()
    for counts, grown in _run_seeds(options):
        total, memory = total.add(counts), memory.combine(grown)
        _say(progress_line(total, options.inputs, began_s))
        for fault in counts.faults:
            _say(fault)
    faults = [*total.faults, *([] if options.sanitize else find_growth(memory))]
    for line in (*format_report(total, time.monotonic() - began_s, memory_growth(memory)), *faults):
        _say(line)
    _say(f"{len(faults)} faults" if faults else "every value that a compiled function returned is fastavro's")
    return 1 if faults else 0


def _is_watched(extension: Path) -> bool:
    return b"__asan_report_load" in extension.read_bytes() and "libasan" in Path("/proc/self/maps").read_text()


def plan_inputs(seed: int, inputs: int) -> list[tuple[int, int]]:
    """Return seed and number of inputs of each run."""
    sizes = [min(INPUTS_PER_RUN, inputs - start) for start in range(0, inputs, INPUTS_PER_RUN)]
    return [(seed + number, size) for number, size in enumerate(sizes)]


def read_seed(seed: int, inputs: int) -> tuple[ReadCounts, RunResult]:
    """Run one seed in this process; return what came of it, and the process's memory."""
    counts = ReaderRun(seed).read_inputs(inputs)
    sample = read_sample(os.getpid())
    return counts, RunResult(memory_bytes={os.getpid(): (0 if sample is None else sample.memory_bytes,)})


def _run_seeds(options: argparse.Namespace) -> Iterator[tuple[ReadCounts, RunResult]]:
    runs = plan_inputs(options.seed, options.inputs)
    if options.processes == 1:  # so that what kills the process is seen where it happens
        yield from (read_seed(*run) for run in runs)
        return
    with ProcessPoolExecutor(options.processes) as pool:
        yield from (done.result() for done in as_completed([pool.submit(read_seed, *run) for run in runs]))


def progress_line(total: ReadCounts, inputs: int, began_s: float) -> str:
    """Return a line about how far the runs are."""
    seconds = max(time.monotonic() - began_s, 1e-9)
    rate = total.inputs / seconds
    left_s = (inputs - total.inputs) / max(rate, 1e-9)
    return (
        f"{seconds:7.0f} s  {total.inputs:>12,} of {inputs:,} inputs, {rate:,.0f}/s, {left_s:,.0f} s left, "
        f"{len(total.faults)} faults"
    )


def format_report(total: ReadCounts, seconds: float, grown_bytes: int) -> list[str]:
    """Return the counts as lines."""
    return [
        "",
        f"{total.inputs:>12,} inputs in {seconds:,.0f} s, {total.inputs / max(seconds, 1e-9):,.0f} a second",
        f"{total.agreed:>12,} were read, as fastavro does",
        f"{total.given_up:>12,} were given up; of {total.compared:,} of them fastavro reads {total.readable:,}",
        f"{total.identities:>12,} identities are those of the whole event",
        f"{total.written:>12,} values were written, as fastavro does",
        f"{total.not_written:>12,} values were not written: given up, most for a wrong part",
        f"a process grew by at most {grown_bytes / _MIB:.1f} MiB",
    ]


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
