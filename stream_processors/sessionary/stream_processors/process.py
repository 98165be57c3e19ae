"""A worker as a process: its start, the signals that end it, and the watch for parts that hang."""

import asyncio
import faulthandler
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from sessionary.schemas.codec.catalogue import writer_schemas
from sessionary.schemas.errors import SettingsError
from sessionary.schemas.telemetry.role_logs import configure_role_logs, end_hung_process, role_logger
from sessionary.stream_processors.runtime.job import Job
from sessionary.stream_processors.settings import SIGNING_KEYS_FILE, ProcessorSettings
from sessionary.stream_processors.startup import check_group, tune_interpreter, wait_for_topics, warn_of_plain_api
from sessionary.stream_processors.worker import Processor

# Ends the process if one of its parts hangs, so that other workers get its partitions.
#
# A separate thread sends the group's heartbeats. They continue if the event loop or the fetching
# hangs: the group would leave the partitions where they are, for ever. A client of librdkafka may
# hang in any call (librdkafka issue 5476), also while it holds the interpreter's lock.


_log = role_logger(__name__)
HUNG_S: Final = 30.0  # no turn of a part takes nearly as long
# The lock of the interpreter is not given back: the heartbeats stop too, and the group gives the
# partitions to others. A process that was stopped for longer ends when it resumes.
LOCKED_S: Final = 300.0
_LOOK_S = 1.0
_STEP_S_MAX = 2.0


class Hung(NamedTuple):
    """The parts that have stood still for long, and for how long the first of them has, seconds."""

    parts: Sequence[str]
    still_s: float


class _Still(NamedTuple):
    turned_s: float
    still_s: float | None  # None: it has not turned yet


class HangDetector:
    """Counts for how long each part has made no turn; pure.

    A part counts from the first turn that is seen. Time in which the process itself stood still
    does not count: a part could not turn either.
    """

    def __init__(self, hung_s: float = HUNG_S) -> None:
        """`hung_s`: after so long a part hangs."""
        self._hung_s = hung_s
        self._parts: dict[str, _Still] = {}
        self._looked_s: float | None = None

    def observe(self, turned_s: Mapping[str, float], now_s: float) -> Hung | None:
        """Return the parts that hang, or None. Others may have stopped a moment after the first.

        `turned_s`: when each part last turned; all times are monotonic.
        """
        step_s = 0.0 if self._looked_s is None else min(_STEP_S_MAX, now_s - self._looked_s)
        self._looked_s = now_s
        former, self._parts = self._parts, {}
        for name, at_s in turned_s.items():
            known = former.get(name)
            if known is None:
                still_s = None
            elif known.turned_s != at_s:
                still_s = 0.0
            else:
                still_s = None if known.still_s is None else known.still_s + step_s
            self._parts[name] = _Still(at_s, still_s)
        times_s = {name: part.still_s for name, part in self._parts.items() if part.still_s is not None}
        longest_s = max(times_s.values(), default=0.0)
        if longest_s < self._hung_s:
            return None
        return Hung([name for name, part_s in times_s.items() if part_s >= self._hung_s / 2], longest_s)


class HangWatch:
    """Checks each second, in a thread, if a part hangs.

    Then it writes the stacks of all threads to stderr, and ends the process with exit code 70. If
    the interpreter's lock is held for five minutes, which stops this thread too, CPython does the
    same with exit code 1.
    """

    def __init__(self, read_turns: Callable[[], Mapping[str, float]], hung_s: float = HUNG_S) -> None:
        """`read_turns` returns when each part last turned, monotonic. Any thread may call it."""
        self._read_turns = read_turns
        self._detector = HangDetector(hung_s)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hang-watch", daemon=True)

    def start(self, locked_s: float = LOCKED_S) -> None:
        """Start. `locked_s`: for how long the interpreter's lock may be held, in seconds."""
        self._locked_s = locked_s
        self._thread.start()

    def stop(self) -> None:
        """Stop watching."""
        self._done.set()
        self._thread.join(2 * _LOOK_S)
        faulthandler.cancel_dump_traceback_later()

    def _run(self) -> None:
        while not self._done.wait(_LOOK_S):
            faulthandler.dump_traceback_later(self._locked_s, exit=True)
            hung = self._detector.observe(self._read_turns(), time.monotonic())
            if hung is not None:
                _end_process(hung)


def _end_process(hung: Hung) -> None:
    _log.critical(
        "the worker ends at once, for %(parts)s has stood still for %(still_s)d s; the stacks of its threads follow",
        parts=" and ".join(hung.parts),
        still_s=int(hung.still_s),
    )
    faulthandler.dump_traceback(sys.stderr, all_threads=True)
    end_hung_process()


def require_signing_keys(settings: ProcessorSettings) -> None:
    """Raise `SettingsError` unless there is a key: without one no operator's event would count."""
    if not settings.signing_keys:
        raise SettingsError(
            f"{SIGNING_KEYS_FILE} is not set: it names the file of the keys that sign what only server roles may "
            "write. Name one, run `sessionary topics apply`, which makes it, and give every worker the same file"
        )


async def _run_until_signal(settings: ProcessorSettings, folder: str, job: Job | None) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await loop.run_in_executor(None, wait_for_topics, settings, stop.is_set)
    if stop.is_set():
        return
    warn_of_plain_api(settings)
    await loop.run_in_executor(None, check_group, settings)
    processor = Processor(settings, folder, job)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, processor.stop)
    if stop.is_set():
        processor.stop()
    watch = HangWatch(processor.read_turns, HUNG_S)
    watch.start()
    try:
        await processor.run()
    finally:
        watch.stop()


def run_processor(settings: ProcessorSettings, job: Job | None = None, role: str = "processor") -> None:
    """Run a worker until SIGTERM or SIGINT, then end gracefully. Blocks; call in the main thread.

    `job`: the work on partitions; default: `processor_job`. `role` is its name in the log.

    Raises `SettingsError` if there is no signing key, if a topic is missing or has another number
    of partitions than the settings say, if the token file cannot be used, or if other workers of
    the group have tokens and this one has none; `ProcessorFailed` if the worker cannot continue.
    """
    require_signing_keys(settings)
    configure_role_logs(role, settings.instance)
    writer_schemas()  # made once; the threads of the first recoveries would each make them
    tune_interpreter()
    with tempfile.TemporaryDirectory(prefix="sessionary-faust-") as folder:
        asyncio.run(_run_until_signal(settings, folder, job))
