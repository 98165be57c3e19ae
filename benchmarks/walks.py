"""How many of our files a verdict takes: `python -m benchmarks.walks`.

The client in memory is judged by the processor's own core in the same thread, so that a profile of
the thread sees the whole way from the client to the verdict. Two ways are walked:

    activity    `session.activity`, applied
    tool call   a call of a decorated function in a run: reserved, called, completed

Printed of each: files of which a function runs, functions that run, and calls of them. Only what is
written counts: not what is made from the schemas, and not comprehensions and lambdas. Each way is
walked once before it is counted, so that nothing is imported or cached on it.
"""

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple

import sessionary.producers
import sessionary.schemas
import sessionary.stream_processors
from generation.modules import FOLDER, ROOT
from sessionary.producers import tool
from sessionary.producers.testing import memory_client

_ROOMS: Final = tuple(
    Path(package.__path__[0]) for package in (sessionary.producers, sessionary.schemas, sessionary.stream_processors)
)
_PREFIXES: Final = tuple(f"{room}/" for room in _ROOMS)
_MADE: Final = str(ROOT / FOLDER) + "/"


class Walk(NamedTuple):
    """The code that ran on the way to a verdict."""

    name: str
    calls: Counter[CodeType]

    @property
    def files(self) -> list[str]:
        """The files, as `producers/client.py`, sorted."""
        names = {Path(code.co_filename) for code in self.calls}
        return sorted(str(name.relative_to(room.parent)) for name in names for room in _ROOMS if room in name.parents)

    def __str__(self) -> str:
        files, functions, calls = len(self.files), len(self.calls), self.calls.total()
        return f"{self.name:<10} {files:>5} files {functions:>5} functions {calls:>6} calls"


def count_calls(work: Callable[[], object]) -> Counter[CodeType]:
    """Return how often each function of the product was called by `work`, in this thread."""
    calls: Counter[CodeType] = Counter()

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        is_ours = code.co_filename.startswith(_PREFIXES) and not code.co_filename.startswith(_MADE)
        if event == "call" and is_ours and not code.co_name.startswith("<"):
            calls[code] += 1

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    return calls


def walk_activity() -> Walk:
    """Walk from `session.activity` to its verdict."""
    client, memory = memory_client()
    with client:
        session = client.session(user_id="ada")
        session.activity("first")
        calls = count_calls(lambda: session.activity("second"))
        if memory.rejections():
            raise RuntimeError("the activity was rejected")
        return Walk("activity", calls)


def walk_tool_call() -> Walk:
    """Walk through a tool call: reserved, called, completed."""

    @tool(effect="write")
    def pay(order: str) -> str:
        return order

    client, memory = memory_client()
    with client:
        session = client.session(user_id="ada")
        with session.run("pay"):
            pay("first")
            calls = count_calls(lambda: pay("second"))
        if memory.rejections():
            raise RuntimeError("the call was rejected")
        return Walk("tool call", calls)


def main(options: list[str]) -> int:
    """Print the walks, with `--files` their files too. Returns the exit code."""
    for walk in (walk_activity(), walk_tool_call()):
        sys.stdout.write(f"{walk}\n")
        if "--files" in options:
            sys.stdout.write("".join(f"    {name}\n" for name in walk.files))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
