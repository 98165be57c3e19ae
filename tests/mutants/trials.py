"""Tries mutants, each in a fork of this process, which has imported all but the mutated modules.

A trial adds the unchanged modules to the mutant's folder and runs the suite until a test fails.
"""

import gc
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.mutants.mutations import Mutant

CPU_S_MAX = 60
WALL_S_MAX = 3_600.0  # for a mutant that hangs; on a busy machine a minute of CPU takes long
DATA_BYTES_MAX = 2 << 30
_POLL_S = 0.003

Install = Callable[[Path], None]  # makes Python import a folder's modules; called in the trial's process
Suite = Callable[[str], str | None]  # hint -> what failed, None if nothing did


class Result(NamedTuple):
    """The outcome of a trial: `killed_by` is None for a survivor."""

    mutant: Mutant
    killed_by: str | None
    cpu_s: float


class _Trial(NamedTuple):
    mutant: Mutant
    pid: int
    answer: int
    started_s: float


def run_trials(mutants: Iterable[Mutant], install: Install, suite: Suite, workers: int) -> Iterator[Result]:
    """Try all mutants, `workers` in parallel. Yields results in the order in which trials end."""
    waiting, running = iter(mutants), list[_Trial]()
    gc.collect()
    gc.freeze()  # otherwise each trial's first collection copies every shared page
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        try:
            while True:
                while len(running) < workers and (mutant := next(waiting, None)) is not None:
                    running.append(_start_trial(mutant, Path(folder), install, suite))
                if not running:
                    return
                ended = [(trial, found[2]) for trial in running if (found := os.wait4(trial.pid, os.WNOHANG))[0]]
                for trial, usage in ended:
                    running.remove(trial)
                    yield _result(trial, usage.ru_utime + usage.ru_stime)
                if not ended:
                    _end_overdue(running)
                    time.sleep(_POLL_S)
        finally:
            for trial in running:
                os.kill(trial.pid, signal.SIGKILL)
                os.waitpid(trial.pid, 0)


def _start_trial(mutant: Mutant, folder: Path, install: Install, suite: Suite) -> _Trial:
    sys.stdout.flush()
    sys.stderr.flush()
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return _Trial(mutant, pid, reading, time.monotonic())
    os.close(reading)
    answer = "died"
    own = folder / str(os.getpid())
    try:
        answer = _run_trial(mutant, own, install, suite) or "survived"
    except BaseException as error:  # noqa: BLE001 - any error kills the mutant; nothing may leave the forked process
        answer = f"{type(error).__name__}: {error} ({traceback.extract_tb(error.__traceback__)[-1].name})"
    finally:
        shutil.rmtree(own, ignore_errors=True)
        os.write(writing, answer.encode(errors="replace")[:4_000])
        os._exit(0)


def _run_trial(mutant: Mutant, folder: Path, install: Install, suite: Suite) -> str | None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # Ctrl-C reaches all processes, but must not count as a kill
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S_MAX, CPU_S_MAX + 1))
    resource.setrlimit(resource.RLIMIT_DATA, (DATA_BYTES_MAX, DATA_BYTES_MAX))
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    sys.dont_write_bytecode = True
    folder.mkdir()
    module = (folder / mutant.module.replace(".", "/")).with_suffix(".py")
    module.parent.mkdir(parents=True, exist_ok=True)
    module.write_text(mutant.source(), "utf-8")
    install(folder)
    failed = suite(mutant.hint)
    return None if failed is None else f"by {failed}"


def _result(trial: _Trial, cpu_s: float) -> Result:
    with os.fdopen(trial.answer, "rb") as pipe:
        answer = pipe.read().decode(errors="replace")
    return Result(trial.mutant, None if answer == "survived" else answer or "time or memory ran out", cpu_s)


def _end_overdue(running: list[_Trial]) -> None:
    for trial in running:
        if time.monotonic() - trial.started_s > WALL_S_MAX:
            os.kill(trial.pid, signal.SIGKILL)
