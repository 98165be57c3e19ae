"""Each way to leave a block has one ending, in its session, run, steps and calls."""

import asyncio
import gc
import sys
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import Any

import pytest

from sessionary.producers import AsyncSessionClient, ToolCallUnresolved, tool, traced
from sessionary.producers.testing import InMemoryTransport, memory_client
from sessionary.schemas.events import (
    RunCancelled,
    RunCompleted,
    RunFailed,
    SessionErrored,
    SessionTerminated,
    StepFailed,
    StepSucceeded,
    ToolCallFailed,
    ToolCallSucceeded,
)

_ENDS = (RunCancelled, RunCompleted, RunFailed, SessionErrored, SessionTerminated, StepFailed, StepSucceeded)
_CALLS = (ToolCallFailed, ToolCallSucceeded)


def endings(memory: InMemoryTransport) -> list[str]:
    """Return the ends in the log, in order, each with its code or reason."""
    found = []
    for event in memory.events():
        payload: Any = event.payload
        if isinstance(payload, (*_ENDS, *_CALLS)):
            error = getattr(payload, "error", None)
            of = payload.reason if isinstance(payload, SessionTerminated) else "" if error is None else error.code
            found.append(f"{event.envelope.event_type} {of}".strip())
    return found


DONE = ["step_succeeded", "run_completed", "session_terminated closed"]
CANCELLED = ["step_failed cancelled", "run_cancelled", "session_terminated cancelled"]


def failed(code: str) -> list[str]:
    return [f"step_failed {code}", f"run_failed {code}", "session_terminated abnormal_termination"]


def errored(code: str) -> list[str]:
    end = [f"session_errored {code}", "session_terminated unrecoverable"]
    return [f"step_failed {code}", f"run_failed {code}", *end]


LEFT_BY: list[tuple[Callable[[], BaseException | None], list[str]]] = [
    (lambda: None, DONE),
    *((lambda: SystemExit(0), DONE), (lambda: SystemExit(), DONE), (lambda: GeneratorExit(), DONE)),
    *((lambda: asyncio.CancelledError(), CANCELLED), (lambda: KeyboardInterrupt(), CANCELLED)),
    (lambda: BaseExceptionGroup("all", [asyncio.CancelledError(), GeneratorExit()]), CANCELLED),
    *((lambda: SystemExit(3), failed("SystemExit")), (lambda: SystemExit("no disk"), failed("SystemExit"))),
    *((lambda: ValueError("bad"), errored("ValueError")), (lambda: TimeoutError("slow"), errored("TimeoutError"))),
    (lambda: ExceptionGroup("all", [ValueError("bad")]), errored("ExceptionGroup")),
]


@pytest.mark.parametrize(("make", "ends"), LEFT_BY)
def test_nested_blocks_end_alike(make: Callable[[], BaseException | None], ends: list[str]) -> None:
    client, memory = memory_client()

    def work() -> None:
        with client.session(user_id="u") as session, session.run("report"), session.llm("large"):
            if (error := make()) is not None:
                raise error

    leave(work)
    assert endings(memory) == ends
    assert memory.rejections() == []


@pytest.mark.parametrize(("make", "ends"), LEFT_BY)
def test_nested_blocks_of_asyncio_end_alike(make: Callable[[], BaseException | None], ends: list[str]) -> None:
    sync_client, memory = memory_client()

    async def work() -> None:
        client = AsyncSessionClient.wrap(sync_client)
        async with client.session(user_id="u") as session, session.run("report"), session.llm("large"):
            if (error := make()) is not None:
                raise error

    leave(lambda: asyncio.run(work()))
    assert endings(memory) == ends
    assert memory.rejections() == []


@pytest.mark.parametrize(("make", "ends"), LEFT_BY[1:])
@pytest.mark.parametrize("kind", ["llm", "tool"])
def test_traced_calls_end_as_their_blocks(kind: str, make: Callable[[], BaseException], ends: list[str]) -> None:
    client, memory = memory_client()

    @traced(kind)
    def call() -> None:
        raise make()

    with client, client.session(user_id="u"):
        leave(call)
    (end,) = [each for each in endings(memory) if not each.startswith("session_")]
    assert end == ends[0].replace("step", "step" if kind == "llm" else "tool_call", 1)


@pytest.mark.parametrize("make", [make for make, _ in LEFT_BY[1:7]])
def test_a_step_or_a_recorded_call_without_a_result_is_cancelled_unless_it_failed(
    make: Callable[[], BaseException],
) -> None:
    client, memory = memory_client()

    def stop() -> None:
        raise make()

    read = tool(name="read", effect="read")(stop)
    with client, client.session(user_id="u") as session:
        run = session.run("report", run_id="r")
        run.__enter__()
        leave(lambda: run.step("collect", read))
        assert endings(memory) == ["tool_call_failed cancelled", "step_failed cancelled"]
        run._leave_metadata()
        with session.resume_run("r") as again:  # an interruption is no failure of the work
            assert again.step("collect", lambda: 7) == 7
    assert endings(memory)[2:] == DONE
    assert memory.rejections() == []


def leave(work: Callable[[], object]) -> None:
    """Do work that may raise anything, but for what a test must see."""
    try:
        work()
    except AssertionError:
        raise
    except BaseException:  # noqa: BLE001 - exits and cancellations are the matter
        return


def test_the_exit_of_a_script_is_no_failure() -> None:
    client, memory = memory_client()
    with pytest.raises(SystemExit), client.session(user_id="u") as session, session.run("nightly"):
        sys.exit()
    assert endings(memory) == DONE[1:]


def test_a_reader_that_leaves_a_stream_ends_it() -> None:
    client, memory = memory_client()

    def stream() -> Iterator[int]:
        with client.session(user_id="u") as session, session.run("answer"), session.llm("large"):
            yield from range(5)

    for number in stream():
        if number == 2:
            break
    gc.collect()
    assert endings(memory) == DONE


@pytest.mark.parametrize("is_late", [False, True])
def test_a_reader_that_leaves_an_asynchronous_stream_ends_it(is_late: bool) -> None:
    sync_client, memory = memory_client()

    async def stream() -> AsyncIterator[int]:
        client = AsyncSessionClient.wrap(sync_client)
        async with client.session(user_id="u") as session, session.run("answer"), session.llm("large"):
            for number in range(5):
                yield number

    reader = stream()

    async def read() -> None:
        async for number in reader:
            if number == 2:
                break
        if not is_late:  # else the loop closes it at its own end
            await reader.aclose()  # type: ignore[attr-defined]

    asyncio.run(read())
    assert endings(memory) == DONE
    assert memory.rejections() == []


def test_a_cancelled_request_is_cancelled_with_all_that_it_began() -> None:
    sync_client, memory = memory_client()

    async def request(began: asyncio.Event) -> None:
        client = AsyncSessionClient.wrap(sync_client)

        async def collect() -> None:
            began.set()
            await asyncio.Event().wait()

        async with client.session(user_id="u") as session, session.run("answer") as run:
            await run.step("collect", collect)

    async def serve() -> None:
        began = asyncio.Event()
        task = asyncio.create_task(request(began))
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(serve())
    assert endings(memory) == CANCELLED
    assert memory.rejections() == []


@pytest.mark.parametrize("may_block", [False, True])
def test_a_coroutine_that_is_closed_reports_the_end_of_its_work(
    may_block: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that its loop left behind: it can wait for nothing."""
    monkeypatch.setattr(InMemoryTransport, "may_block", may_block)
    sync_client, memory = memory_client()

    class Never:
        def __await__(self) -> Generator[None, None, None]:
            yield

    @traced("wait")
    async def collect() -> None:
        await Never()

    async def work() -> None:
        client = AsyncSessionClient.wrap(sync_client)
        async with (
            client.session(user_id="u") as session,
            session.turn(),
            session.run("answer") as run,
            session.llm("large"),
        ):
            await run.step("collect", collect)

    async def begin() -> None:
        coroutine = work()
        waits_for: Any = coroutine.send(None)
        while waits_for is not None:  # a thread's work; `collect` waits for nothing
            await asyncio.wait([waits_for])
            waits_for = coroutine.send(None)
        coroutine.close()

    asyncio.run(begin())
    assert endings(memory) == [DONE[0], "step_failed cancelled", *DONE]
    assert memory.rejections() == []


def test_what_a_clean_up_raises_is_how_the_block_ends() -> None:
    client, memory = memory_client()

    class Broken:
        def __enter__(self) -> None: ...

        def __exit__(self, *error: object) -> None:
            raise ValueError("clean-up")

    with (
        pytest.raises(ValueError, match="clean-up"),
        client.session(user_id="u") as session,
        session.run("r"),
        Broken(),
    ):
        raise KeyboardInterrupt
    assert endings(memory) == errored("ValueError")[1:]


def call_in_a_group(call: Callable[[], object]) -> None:
    try:
        call()
    except ToolCallUnresolved as error:
        raise ExceptionGroup("all", [ValueError(), error]) from None


def test_a_run_stays_open_for_a_call_of_unknown_outcome_among_others() -> None:
    client, memory = memory_client()

    def send() -> None:
        raise TimeoutError("slow")

    with client, client.session(user_id="u") as session:
        with pytest.raises(ExceptionGroup), session.run("report", run_id="r"):
            call_in_a_group(tool(name="send", effect="write", deadline=5)(send))
        memory.advance(6)
        assert session.resume_run("r").resume_plan().state == "paused"
    assert memory.rejections() == []


@pytest.mark.parametrize("state", ["Idle", "Timeout"])
def test_a_session_that_cannot_be_cancelled_is_left_as_its_state_allows(state: str) -> None:
    client, memory = memory_client()
    session = client.create(user_id="u")
    if state == "Timeout":
        session.start()
        memory.silence(session)
        memory.advance(120)
        session.sync()
    assert session.local_state == state
    with pytest.raises(KeyboardInterrupt), session:
        raise KeyboardInterrupt
    types = [event.envelope.event_type for event in memory.events()]
    assert types[-1] == {"Idle": "session_start_failed", "Timeout": "session_started"}[state]
    assert memory.rejections() == []
