"""Checkpoints of runs: at borders of tools, and after every few items of a list.

All in one process: an interruption that leaves no event stands for its death.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import get_args

import pytest

from sessionary.producers import AsyncSessionClient, Invalid, Run, RunOver, Session, tool
from sessionary.producers.testing import InMemoryTransport, memory_client
from sessionary.schemas.enums import CheckpointKind
from sessionary.schemas.events import CheckpointSaved, StepSkipped, StepStarted, StepSucceeded, ToolCallStarted

PAGES = [f"page-{number}" for number in range(1, 201)]


class Parser:
    """Parses pages; it is interrupted in the page after some number of them."""

    def __init__(self, dies_after: int | None = None) -> None:
        self.parsed: list[str] = []
        self.dies_after = dies_after

    def parse_all(self, run: Run, pages: Sequence[str] = PAGES, every: int = 5) -> None:
        for page in run.items(pages, name="parse", every=every):
            self.parse(page)

    def parse(self, page: str) -> None:
        if len(self.parsed) == self.dies_after:
            raise KeyboardInterrupt
        self.parsed.append(page)


def die_in(session: Session, parser: Parser, pages: Sequence[str] = PAGES) -> None:
    """Interrupt run `r` while it parses; nothing says that it ended."""
    run = session.run("report", run_id="r")
    run.__enter__()
    with pytest.raises(KeyboardInterrupt):
        parser.parse_all(run, pages)
    run._leave_metadata()


def checkpoints(memory: InMemoryTransport) -> list[CheckpointSaved]:
    return [event.payload for event in memory.events() if isinstance(event.payload, CheckpointSaved)]


def places(memory: InMemoryTransport) -> list[tuple[str, str | None, int | None, str | None]]:
    return [(each.operation, each.stage, each.processed_count, each.last_item_id) for each in checkpoints(memory)]


@pytest.mark.parametrize(("dies_after", "goes_on_at"), [(70, 71), (74, 71), (75, 76), (3, 1)])
def test_a_run_interrupted_in_a_list_goes_on_at_its_last_checkpoint(dies_after: int, goes_on_at: int) -> None:
    first, second = Parser(dies_after), Parser()
    client, memory = memory_client()
    with client, client.session(user_id="u") as session:
        die_in(session, first)
        with session.resume_run("r") as run:
            assert run.last_checkpoint is None or run.last_checkpoint.processed_count == goes_on_at - 1
            second.parse_all(run)
    assert second.parsed == PAGES[goes_on_at - 1 :]
    assert len(first.parsed) - (goes_on_at - 1) < 5
    assert memory.rejections() == []


@pytest.mark.parametrize(
    ("count", "every", "saved"), [(12, 5, [5, 10, 12]), (10, 5, [5, 10]), (2, 1, [1, 2]), (0, 5, [])]
)
def test_the_tail_after_the_last_multiple_is_saved(count: int, every: int, saved: list[int]) -> None:
    """Trap 16."""
    client, memory = memory_client()
    with client, client.session(user_id="u") as session, session.run("report") as run:
        Parser().parse_all(run, PAGES[:count], every)
    assert places(memory) == [("parse", None, number, f"page-{number}") for number in saved]


def test_a_list_is_a_step_that_is_done_once_over_all_attempts() -> None:
    client, memory = memory_client()
    parser, again = Parser(), Parser()
    with client, client.session(user_id="u") as session:
        run = session.run("report", run_id="r", plan=["parse", "write"])
        run.__enter__()
        parser.parse_all(run, PAGES[:7])
        run.checkpoint("draft_made", "write")  # now the run's last checkpoint is not the list's
        run._leave_metadata()
        plan = session.resume_run("r").resume_plan()
        assert (plan.done, plan.next) == (("parse",), "write")
        with session.resume_run("r") as resumed:
            again.parse_all(resumed, PAGES[:7])
    assert (len(parser.parsed), again.parsed) == (7, [])
    steps = [event.payload for event in memory.events() if isinstance(event.payload, StepStarted | StepSucceeded)]
    assert steps == [StepStarted("parse", 1, '{"items":true}'), StepSucceeded("parse", 1, '{"items":7}')]
    assert any(isinstance(event.payload, StepSkipped) for event in memory.events())
    assert memory.rejections() == []


def test_two_lists_need_two_names() -> None:
    client, _ = memory_client()
    with client, client.session(user_id="u") as session, session.run("report") as run:
        assert list(run.items([1, 2])) == [1, 2]
        assert list(run.items([3], name="others")) == [3]
        with pytest.raises(Invalid, match="'items' was worked through"):
            list(run.items([4]))


def test_a_list_within_a_list_is_refused_as_a_run_has_one_place() -> None:
    client, memory = memory_client()
    done: list[int] = []
    with client, client.session(user_id="u") as session, session.run("report") as run:
        for number in run.items([1, 2], name="chapters", every=1):
            with pytest.raises(Invalid, match=r"'pages' begins before 'chapters' has ended.*one list of both"):
                done += run.items([3, 4], name="pages", every=1)
            done.append(number)
        with pytest.raises(Invalid, match="'right' begins before 'left' has ended"):
            list(zip(run.items([1, 2], name="left"), run.items([1, 2], name="right"), strict=True))
        done += run.items([5], name="after both")
    assert done == [1, 2, 5]
    started = [event.payload.name for event in memory.events() if isinstance(event.payload, StepStarted)]
    assert started == ["chapters", "left", "after both"]


def test_a_list_that_was_left_early_is_in_no_other_s_way() -> None:
    client, _ = memory_client()

    async def leave_early(run: Run) -> list[int]:
        async for number in run.items([1, 2], name="async"):
            assert number == 1
            break
        return [number async for number in run.items([6], name="behind it")]

    with client, client.session(user_id="u") as session, session.run("report") as run:
        for number in run.items([1, 2], name="left"):
            assert number == 1
            break
        with pytest.raises(ZeroDivisionError):
            [1 // number for number in run.items([0], name="failed")]
        assert list(run.items([7], name="next")) == [7]
        assert asyncio.run(leave_early(run)) == [6]


@pytest.mark.parametrize(
    ("pages", "complaint"), [(["a", *PAGES], "item 5 was 'page-5', and is 'page-4'"), (PAGES[:3], "5 items were done")]
)
def test_another_list_is_noticed(pages: list[str], complaint: str) -> None:
    client, _ = memory_client()
    with client, client.session(user_id="u") as session:
        die_in(session, Parser(6))
        with pytest.raises(Invalid, match=complaint), session.resume_run("r") as run:
            Parser().parse_all(run, pages)


def test_items_that_are_no_texts_are_named_by_the_caller() -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as session, session.run("report") as run:
        for _ in run.items([{"id": 7}], item_id=lambda item: f"item {item['id']}"):
            pass
        for _ in run.items([{"id": 8}], name="unnamed"):
            pass
    assert places(memory) == [("items", None, 1, "item 7"), ("unnamed", None, 1, None)]


@pytest.mark.parametrize("every", [0, -1])
def test_a_checkpoint_needs_an_item(every: int) -> None:
    client, _ = memory_client()
    with client, client.session(user_id="u") as session:
        run = session.run("report")
        with run, pytest.raises(Invalid, match="every"):
            run.items([1], every=every)


def test_a_complete_run_has_nothing_more_to_do() -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as session:
        with session.run("report", run_id="r"):
            pass
        sent = len(memory.events())
        with session.resume_run("r") as run, pytest.raises(RunOver):
            Parser().parse_all(run)
        assert len(memory.events()) == sent


def test_lists_for_asyncio() -> None:
    async def numbers() -> AsyncIterator[int]:
        for number in range(7):
            yield number

    async def work(client: AsyncSessionClient) -> list[int]:
        seen: list[int] = []
        async with client.session(user_id="u") as session:
            run = session.run("report", run_id="r")
            await run.__aenter__()
            async for number in run.items(numbers(), name="count"):
                if number == 6:
                    break
            run._leave_metadata()
            async with session.resume_run("r") as resumed:
                seen += [number async for number in resumed.items(numbers(), name="count")]
                seen += [text async for text in resumed.items([10, 11], name="plain")]
                with pytest.raises(TypeError, match="async for"):
                    list(resumed.items(numbers(), name="wrong"))
        return seen

    client, memory = memory_client()
    with client:
        assert asyncio.run(work(AsyncSessionClient.wrap(client))) == [5, 6, 10, 11]
    assert [place[:3] for place in places(memory)] == [
        *(("count", None, 5), ("count", None, 7), ("plain", None, 2)),
    ]


def test_a_tool_with_an_effect_has_a_checkpoint_before_and_after() -> None:
    client, memory = memory_client()
    send = tool(name="send", effect="write")(str.upper)
    read = tool(name="read", effect="read")(str.lower)
    with client, client.session(user_id="u") as session:
        send("outside")
        with session.run("report", run_id="r"):
            assert (send("hello"), read("A")) == ("HELLO", "a")
    key = next(
        e.payload.idem_key for e in memory.events() if isinstance(e.payload, ToolCallStarted) and e.envelope.run_id
    )
    before, after = checkpoints(memory)  # none of the call that only reads
    assert (before.operation, before.kind, after.operation) == ("send", None, "send")
    assert (before.stage, after.stage) == (f"before call send: {key}", f"after call send: {key}")
    assert after.kind == "tool_calls_done"
    types = [event.envelope.event_type for event in memory.events()]
    first = types.index("checkpoint_saved")
    assert types[first - 1 : first + 3] == [
        *("tool_call_started", "checkpoint_saved", "tool_call_succeeded", "checkpoint_saved"),
    ]
    assert {event.envelope.run_id for event in memory.events() if event.payload in (before, after)} == {"r"}


def test_a_border_in_a_list_keeps_the_place_in_the_list() -> None:
    calls: list[str] = []

    @tool(name="order", effect="write")
    def order(page: str) -> str:
        calls.append(page)
        if page == "page-8":
            raise KeyboardInterrupt
        return page

    client, memory = memory_client()
    with client, client.session(user_id="u") as session:
        run = session.run("report", run_id="r")
        run.__enter__()
        with pytest.raises(KeyboardInterrupt):
            [order(page) for page in run.items(PAGES[:10], name="orders")]
        run._leave_metadata()
        last = places(memory)[-1]
        assert (last[0], *last[2:]) == ("orders", 7, "page-7")
        assert f"{last[1]}".startswith("before call order: ")
        memory.advance(30)
        resumed = session.resume_run("r")
        assert resumed.resume_plan().unresolved != ()
    assert calls == PAGES[:8]


def test_the_kinds_of_checkpoints_are_the_usual_points_of_work() -> None:
    kinds = [kind for kind in get_args(CheckpointKind) if kind != "UNKNOWN"]
    assert kinds == ["plan_made", "sources_fetched", "tool_calls_done", "draft_made", "published"]
    client, memory = memory_client()
    with client, client.session(user_id="u") as session, session.run("report") as run:
        ids = [run.checkpoint(kind, "report", bytes_written=7, data={"a": 1}) for kind in kinds]
    assert [(each.checkpoint_id, each.kind) for each in checkpoints(memory)] == list(zip(ids, kinds, strict=True))
    assert checkpoints(memory)[0] == CheckpointSaved(
        ids[0], "report", bytes_written=7, data_json='{"a":1}', kind="plan_made"
    )
    assert memory.rejections() == []
