"""The operators' pages over HTTP: partitions of several workers, a new start for a halted one."""

import asyncio
import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from sessionary.infra.local.ports import free_port
from sessionary.schemas.records import Position
from sessionary.schemas.rules import NEWEST_RULES
from sessionary.schemas.types import PartitionDecision
from sessionary.stream_processors.api.openapi import DOCUMENT
from sessionary.stream_processors.api.operators import partitions as partition_pages
from sessionary.stream_processors.core.model import ClockSetting, Rebuild, RebuildMode
from sessionary.stream_processors.errors import Halted, Lost, RebuildRefused
from sessionary.stream_processors.runtime.decisions import (
    BrokerTime,
    GapAcceptance,
    OperatorDecision,
    RecordSkip,
    TruncationAcceptance,
)
from sessionary.stream_processors.runtime.log_identity import TopicIds
from sessionary.stream_processors.runtime.partition_owner import PartitionOwner
from sessionary.stream_processors.runtime.rebuild import RebuildPlan
from sessionary.stream_processors.settings import ProcessorSettings
from sessionary.stream_processors.store.stores import MemoryStore
from tests.core.store_rig import JOB
from tests.core.stream_processors.api.api_server import ApiResponse, FakeAssignment, Server, running_server

PARTITIONS = b"/v1/partitions"
FIELDS = set(DOCUMENT["components"]["schemas"]["Partition"]["properties"])
SKIP = PartitionDecision("records_skipped", 4, 4, 6, 1_700_000_000_000, "alice")
GAP = Halted("log_gap", "partition 1: next is offset 5, but the log holds 7 to 9")


class FakeOwner:
    """A partition at offset 70 after 7 batches, with three live rows."""

    def __init__(self, partition: int, halted: Halted | None = None, is_open: bool = True) -> None:
        self.partition, self.halted, self.is_open = partition, halted, is_open and halted is None
        self.halted_at_ms = 1_700_000_000_000 if halted else None
        self.state, self.live, self.position = self, 3, Position(70, 0, 0, 7, 0, decisions=(SKIP,))
        self.began_reading = True
        self.waited: list[float] = []
        self.decision_left: OperatorDecision | None = None

    async def wait_until(self, is_reached: Callable[[Position], bool], timeout_s: float) -> bool:
        self.waited.append(timeout_s)
        return self.is_open

    async def wait_until_committed(self, offset: int, timeout_s: float) -> bool:
        self.waited.append(timeout_s)
        return self.is_open


class RetryAssignment(FakeAssignment):
    """Owns partitions; a partition that is opened again gets the owner that `next_owner` makes."""

    def __init__(self, *owners: FakeOwner, next_halted: Halted | None = None) -> None:
        super().__init__()
        self.owners = {owner.partition: owner for owner in owners}
        self._next_halted = next_halted
        self.opens = True
        self.defers = False  # whether a decision is carried out later than its answer
        self.reopened: list[int] = []
        self.decisions: list[OperatorDecision] = []

    def reopen_partition(self, partition: int, decision: OperatorDecision | None = None) -> None:
        self.reopened.append(partition)
        if decision is not None:
            self.decisions.append(decision)
        self.owners[partition] = FakeOwner(partition, self._next_halted, self.opens)
        self.owners[partition].decision_left = decision if self.defers else None


async def list_partitions(server: Server) -> list[dict[str, Any]]:
    answer = await server.ask(PARTITIONS, b"Bearer op")
    assert answer.status == 200, answer
    listed: list[dict[str, Any]] = answer.body["partitions"]
    assert all(document.keys() == FIELDS for document in listed)
    return listed


async def decide(server: Server, partition: int, command: bytes, body: object) -> ApiResponse:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    more = b"Content-Type: application/json\r\n"
    path = b"/v1/partitions/%d/%s" % (partition, command)
    return await server.ask(path, b"Bearer op", b"POST", more, content)


async def retry(server: Server, partition: int) -> ApiResponse:
    return await server.ask(b"/v1/partitions/%d/retry" % partition, b"Bearer op", b"POST")


def test_a_worker_lists_its_own_partitions_and_those_of_the_others(tmp_path: Path) -> None:
    ports = [free_port(), free_port(), free_port()]
    urls = {n: f"http://127.0.0.1:{port}" for n, port in enumerate([ports[0], ports[0], ports[1]])}
    urls[3] = f"http://127.0.0.1:{ports[2]}"  # nothing listens there
    ours = RetryAssignment(FakeOwner(0), FakeOwner(1, GAP))
    theirs = RetryAssignment(FakeOwner(2, is_open=False))

    async def story() -> None:
        async with (
            running_server(tmp_path, ours, urls, "w1", ports[0]) as first,
            running_server(tmp_path, theirs, urls, "w2", ports[1]) as second,
        ):
            listed = await list_partitions(first)
            assert [(d["partition"], d["state"], d["instance"]) for d in listed] == [
                (0, "open", "w1"),
                (1, "halted", "w1"),
                (2, "opening", "w2"),
                (3, "unreachable", None),
            ]
            assert await list_partitions(second) == listed
            is_open, halted, opening, unreachable = listed
            assert (is_open["next_offset"], is_open["batch_number"], is_open["live_rows"]) == (70, 7, 3)
            assert (is_open["decisions"], opening["decisions"]) == ([SKIP._asdict()], None)
            assert (halted["reason"], halted["detail"]) == (GAP.reason, GAP.detail)
            assert (halted["halted_at_ms"], halted["next_offset"]) == (1_700_000_000_000, 70)
            assert opening["url"] == second.url
            assert [opening["next_offset"], opening["batch_number"], opening["live_rows"]] == [None] * 3
            assert unreachable["url"] == urls[3]
            assert "does not answer: ClientConnectorError" in unreachable["detail"]

    asyncio.run(story())


def test_a_partition_without_an_owner_or_without_an_api_is_listed_as_such(tmp_path: Path) -> None:
    async def story() -> None:
        port = free_port()
        # The group names this worker for partition 1, but it has not taken the assignment yet.
        urls = {1: f"http://127.0.0.1:{port}", 2: "http://other:0"}
        async with running_server(tmp_path, RetryAssignment(FakeOwner(0)), urls, port=port) as server:
            listed = await list_partitions(server)
            assert [document["state"] for document in listed] == ["open", "unassigned", "unreachable", "unassigned"]
            assert listed[2]["detail"] == "the worker has no control API"
            assert "start a processor" in listed[3]["detail"]

    asyncio.run(story())


def test_a_worker_that_is_asked_by_another_names_its_own_partitions_only(tmp_path: Path) -> None:
    async def story() -> None:
        async with running_server(tmp_path, RetryAssignment(FakeOwner(2))) as server:
            answer = await server.ask(PARTITIONS, b"Bearer op", more=b"Sessionary-Routed: w2\r\n")
            assert [document["partition"] for document in answer.body["partitions"]] == [2]

    asyncio.run(story())


def test_of_an_unread_changelog_no_position_is_reported(tmp_path: Path) -> None:
    async def story() -> None:
        halted = FakeOwner(0, Halted("changelog_unreadable", "partition 0, offset 3"))
        async with running_server(tmp_path, RetryAssignment(halted)) as server:
            document = (await list_partitions(server))[0]
            assert (document["state"], document["next_offset"], document["batch_number"]) == ("halted", None, None)
            assert document["decisions"] is None

    asyncio.run(story())


def test_a_halted_partition_is_opened_again_and_who_asked_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assignment = RetryAssignment(FakeOwner(1, GAP))

    async def story() -> None:
        async with running_server(tmp_path, assignment) as server:
            answer = await retry(server, 1)
            assert (answer.status, answer.body["state"], answer.body["reason"]) == (200, "open", None)
            assert answer.body.keys() == FIELDS
            answer = await retry(server, 1)
            assert (answer.status, answer.body["reason"], answer.is_problem) == (409, "not_halted", True)
            assert "partition 1 is open" in answer.body["detail"]

    asyncio.run(story())
    assert assignment.reopened == [1]
    assert len(assignment.owners[1].waited) == 1, "the answer waits for the owner"
    (reported,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "on-call" in reported
    assert GAP.detail in reported


def test_a_partition_that_halts_again_is_answered_with_its_reason(tmp_path: Path) -> None:
    async def story() -> None:
        again = Halted("record_too_large", "audit")
        async with running_server(tmp_path, RetryAssignment(FakeOwner(1, GAP), next_halted=again)) as server:
            answer = await retry(server, 1)
            assert (answer.status, answer.body["state"], answer.body["reason"]) == (200, "halted", "record_too_large")

    asyncio.run(story())


def test_a_retry_reaches_the_owner_through_any_worker(tmp_path: Path) -> None:
    theirs = RetryAssignment(FakeOwner(2, Halted("log_gap", "gone")))

    async def story() -> None:
        ports = [free_port(), free_port()]
        urls = {2: f"http://127.0.0.1:{ports[1]}"}
        async with (
            running_server(tmp_path, RetryAssignment(), urls, "w1", ports[0]) as first,
            running_server(tmp_path, theirs, urls, "w2", ports[1]),
        ):
            answer = await retry(first, 2)
            assert (answer.status, answer.body["instance"], answer.body["state"]) == (200, "w2", "open")
            assert (await retry(first, 2)).status == 409
            answer = await retry(first, 3)
            assert (answer.status, answer.body["reason"]) == (503, "not_ready")

    asyncio.run(story())
    assert theirs.reopened == [2]


def test_a_gap_is_accepted_by_the_caller_and_reaches_the_owner_through_any_worker(tmp_path: Path) -> None:
    theirs = RetryAssignment(FakeOwner(2, GAP))

    async def story() -> None:
        ports = [free_port(), free_port()]
        urls = {2: f"http://127.0.0.1:{ports[1]}"}
        async with (
            running_server(tmp_path, RetryAssignment(), urls, "w1", ports[0]) as first,
            running_server(tmp_path, theirs, urls, "w2", ports[1]),
        ):
            answer = await decide(first, 2, b"accept-gap", {"reason": " lost in the fire "})
            assert (answer.status, answer.body["instance"], answer.body["state"]) == (200, "w2", "open")

    asyncio.run(story())
    assert theirs.decisions == [GapAcceptance("lost in the fire", "on-call")]


def test_a_truncation_is_accepted_only_where_there_is_one(tmp_path: Path) -> None:
    cut = Halted("log_truncated", "partition 1: the log ends at 20")
    assignment = RetryAssignment(FakeOwner(1, cut), FakeOwner(2, GAP))

    async def story() -> None:
        async with running_server(tmp_path, assignment) as server:
            answer = await decide(server, 2, b"accept-truncation", {"reason": "why"})
            assert (answer.status, answer.body["reason"]) == (409, "no_truncation")
            assert (await decide(server, 1, b"accept-truncation", {"reason": "power loss"})).status == 200

    asyncio.run(story())
    assert assignment.decisions == [TruncationAcceptance("power loss", "on-call")]


def test_only_the_record_at_which_a_partition_is_halted_can_be_skipped(tmp_path: Path) -> None:
    fault = Halted("judge_failed", "partition 1, offset 70: KeyError", offset=70)
    assignment = RetryAssignment(FakeOwner(1, fault), next_halted=fault)

    async def story() -> None:
        async with running_server(tmp_path, assignment) as server:
            answer = await decide(server, 1, b"skip", {"offset": 69, "reason": "why"})
            assert (answer.status, answer.body["reason"], answer.is_problem) == (409, "wrong_offset", True)
            assert "halted at offset 70, not at 69" in answer.body["detail"]
            answer = await decide(server, 1, b"accept-gap", {"reason": "why"})
            assert (answer.status, answer.body["reason"]) == (409, "no_gap")
            assert assignment.reopened == []
            for last in (None, 75):
                answer = await decide(server, 1, b"skip", {"offset": 70, "to": last, "reason": "why"})
                assert answer.status == 200

    asyncio.run(story())
    assert assignment.decisions == [RecordSkip(70, last, "why", "on-call", fault) for last in (70, 75)]


def test_a_partition_is_not_open_before_its_decision_is_carried_out(tmp_path: Path) -> None:
    assignment = RetryAssignment(FakeOwner(1, Halted("judge_failed", "reported so", offset=70)))
    assignment.defers = True

    async def story() -> None:
        async with running_server(tmp_path, assignment) as server:
            answer = await decide(server, 1, b"skip", {"offset": 70, "reason": "why"})
            assert (answer.status, answer.body["state"]) == (200, "opening")
            (listed,) = (one for one in await list_partitions(server) if one["partition"] == 1)
            assert listed["state"] == "opening"

    asyncio.run(story())


def test_a_halt_before_the_changelog_was_read_knows_no_offset() -> None:
    """As a store that cannot be opened again, because its disk is full."""
    owner = FakeOwner(1, Halted("store_disk_full", "no room"))
    shown = partition_pages.partition_document(cast(PartitionOwner, owner), ProcessorSettings())
    assert (shown["next_offset"], shown["batch_number"]) == (70, 7)
    owner.began_reading = False
    shown = partition_pages.partition_document(cast(PartitionOwner, owner), ProcessorSettings())
    assert (shown["reason"], shown["next_offset"], shown["batch_number"]) == ("store_disk_full", None, None)


LOST_ROWS = Halted("changelog_incomplete", "partition 1: the position record counts 9 rows")


def test_the_rows_of_a_halted_partition_are_rebuilt_in_the_way_that_was_asked_for(tmp_path: Path) -> None:
    assignment = RetryAssignment(FakeOwner(1, LOST_ROWS), next_halted=LOST_ROWS)

    async def story() -> None:
        async with running_server(tmp_path, assignment) as server:
            for mode in ({}, {"mode": "accept_rows"}):
                assert (await decide(server, 1, b"rebuild", {"reason": "power loss", **mode})).status == 200
            answer = await decide(server, 1, b"rebuild", {"reason": "why", "mode": "accept_topics"})
            assert (answer.status, answer.body["reason"]) == (409, "not_rebuildable")
            assert "only a topic_replaced" in answer.body["detail"]

    asyncio.run(story())
    modes: list[RebuildMode] = ["refold", "accept_rows"]
    assert assignment.decisions == [Rebuild(mode, "power loss", "on-call") for mode in modes]


@pytest.mark.parametrize(
    ("fault", "body", "status", "part"),
    [
        (None, {"reason": "why"}, 409, "partition 1 is open: only a halted partition"),
        (None, {"dry_run": True, "reason": "why"}, 409, "partition 1 is open: only a halted partition"),
        (
            GAP,
            {"reason": "why"},
            409,
            "halted by log_gap, for which its rows need no rebuild",
        ),
        (GAP, {"dry_run": True, "reason": "why"}, 409, "sessionary partition accept-gap"),
        (Halted("transaction_open", "why"), {"reason": "why"}, 409, "sessionary partition retry"),
        (LOST_ROWS, {}, 400, "say why"),
        (LOST_ROWS, {"reason": "why", "mode": "anew"}, 400, "use refold, accept_rows, accept_topics"),
        (LOST_ROWS, {"reason": "why", "mode": ["refold"]}, 400, "use refold, accept_rows, accept_topics"),
        (LOST_ROWS, {"dry_run": "yes"}, 400, "use true or false"),
    ],
)
def test_a_rebuild_that_ends_no_halt_is_refused(
    tmp_path: Path, fault: Halted | None, body: dict[str, object], status: int, part: str
) -> None:
    assignment = RetryAssignment(FakeOwner(1, fault))

    async def story() -> None:
        async with running_server(tmp_path, assignment) as server:
            answer = await decide(server, 1, b"rebuild", body)
            assert (answer.status, part in answer.body["detail"]) == (status, True), answer.body
            assert (await decide(server, 99, b"rebuild", {"reason": "why"})).status == 404

    asyncio.run(story())
    assert assignment.reopened == []


def test_a_dry_run_answers_what_would_change_and_opens_nothing(tmp_path: Path) -> None:
    assignment = RetryAssignment(FakeOwner(1, LOST_ROWS))
    answers: list[Exception | RebuildPlan] = [
        RebuildRefused("partition 1 is not rebuilt: its log begins at offset 7"),
        Lost("no broker answers"),
        RebuildPlan(
            *("refold", Position(60, 0, 0, 6, 0), Position(70, 0, 0, 7, 0), TopicIds(), None),
            *(MemoryStore(JOB.row_codec), lambda _: None),
            added=[b"a", b"b"],
            changed=[b"c"],
            audited_beyond=3,
        ),
    ]

    async def plan(partition: int, mode: str) -> RebuildPlan:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def story() -> None:
        assignment.plan_rebuild = plan  # type: ignore[attr-defined]
        async with running_server(tmp_path, assignment) as server:
            answer = await decide(server, 1, b"rebuild", {"dry_run": True, "reason": "why"})
            assert (answer.status, answer.body["reason"]) == (409, "not_rebuilt")
            assert (await decide(server, 1, b"rebuild", {"dry_run": True, "reason": "why"})).status == 503
            answer = await decide(server, 1, b"rebuild", {"dry_run": True, "reason": "why"})
            assert answer.body.keys() == DOCUMENT["components"]["schemas"]["RebuildPlan"]["properties"].keys()
            counts = [answer.body[name] for name in ("rows_added", "rows_changed", "rows_removed", "judged_again")]
            assert counts == [2, 1, 0, 3]
            assert (answer.body["former_offset"], answer.body["next_offset"]) == (60, 70)

    asyncio.run(story())
    assert assignment.reopened == []


def test_a_user_s_token_may_not_look_at_what_a_rebuild_changes(tmp_path: Path) -> None:
    assignment = RetryAssignment(FakeOwner(1, LOST_ROWS))
    body, more = json.dumps({"dry_run": True, "reason": "why"}).encode(), b"Content-Type: application/json\r\n"

    async def story() -> None:
        async with running_server(tmp_path, assignment) as server:
            answer = await server.ask(PARTITIONS + b"/1/rebuild", b"Bearer of-u1", b"POST", more, body)
            assert (answer.status, answer.body["reason"]) == (403, "forbidden")

    asyncio.run(story())


def test_a_halt_at_no_record_has_none_to_skip(tmp_path: Path) -> None:
    assignment = RetryAssignment(FakeOwner(1, GAP))

    async def story() -> None:
        async with running_server(tmp_path, assignment) as server:
            answer = await decide(server, 1, b"skip", {"offset": 5, "reason": "why"})
            assert (answer.status, answer.body["reason"]) == (409, "not_skippable")

    asyncio.run(story())
    assert assignment.reopened == []


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b"{",
        {},
        {"offset": 70},
        {"offset": 70, "reason": " "},
        {"offset": 70, "reason": "x" * 1_001},
        {"offset": True, "reason": "why"},
        {"offset": "70", "reason": "why"},
        {"offset": -1, "reason": "why"},
        {"offset": 70, "to": 69, "reason": "why"},
        {"offset": 70, "to": 1 << 63, "reason": "why"},
    ],
)
def test_a_malformed_decision_is_rejected(tmp_path: Path, body: object) -> None:
    assignment = RetryAssignment(FakeOwner(1, Halted("judge_failed", "why", offset=70)))

    async def story() -> None:
        async with running_server(tmp_path, assignment) as server:
            answer = await decide(server, 1, b"skip", body)
            assert (answer.status, answer.body["reason"], answer.is_problem) == (400, "invalid_value", True)

    asyncio.run(story())
    assert assignment.reopened == []


def test_a_worker_that_may_have_lost_its_partitions_opens_none(tmp_path: Path) -> None:
    assignment = RetryAssignment(FakeOwner(1, GAP))

    async def story() -> None:
        async with running_server(tmp_path, assignment, heartbeat_age_s=7.0) as server:  # the time-out is 6 s
            answer = await retry(server, 1)
            assert (answer.status, answer.body["reason"]) == (503, "not_ready")
            assert "no answer of its group" in answer.body["detail"]

    asyncio.run(story())
    assert assignment.reopened == []


AHEAD = Halted("clock_ahead", "partition 1: the record at offset 70", 540.0, 70)


class ClockOwner(FakeOwner):
    """A partition whose clock is so far ahead of the worker's when this is made."""

    def __init__(self, halted: Halted | None = None, ahead_s: float = 0.0, **position: Any) -> None:
        super().__init__(1, halted)
        clock_ms = int((time.time() + ahead_s) * 1_000)
        self.may_repair_clock = position.get("outputs_written", 0) < 2  # two timers of the next record have fired
        self.position = self.position._replace(**{"clock_ms": clock_ms, "rules": NEWEST_RULES, **position})


class AskedBroker:
    """Answers with a time that is so far from the worker's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ahead_s: float = 0.0) -> None:
        self.asked: list[int] = []
        self.ahead_s: float | None = ahead_s
        monkeypatch.setattr(partition_pages, "read_broker_time", self.read)

    def read(self, _settings: object, partition: int) -> BrokerTime:
        self.asked.append(partition)
        if self.ahead_s is None:
            raise Lost("partition 1: a tick was not acknowledged")
        return BrokerTime(93, 1_700_000_000_000, self.ahead_s)


@pytest.mark.parametrize(
    "owner", [ClockOwner(AHEAD), ClockOwner(AHEAD, outputs_written=1), ClockOwner(ahead_s=3_600.0)]
)
def test_a_clock_is_set_to_the_time_of_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: ClockOwner
) -> None:
    assignment, broker = RetryAssignment(owner), AskedBroker(monkeypatch)

    async def story() -> None:
        async with running_server(tmp_path, assignment) as server:
            answer = await decide(server, 1, b"repair-clock", {"reason": " it leapt "})
            assert (answer.status, answer.body["state"]) == (200, "open")

    asyncio.run(story())
    assert assignment.decisions == [ClockSetting(1_700_000_000_000, 93, "it leapt", "on-call")]
    assert broker.asked == [1]
    assert len(assignment.owners[1].waited) == 1


def test_a_clock_whose_partition_is_lost_meanwhile_is_not_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assignment = RetryAssignment(ClockOwner(AHEAD))
    assignment.opens = False
    AskedBroker(monkeypatch)

    async def story() -> None:
        async with running_server(tmp_path, assignment) as server:
            answer = await decide(server, 1, b"repair-clock", {"reason": "it leapt"})
            assert (answer.status, answer.body["reason"]) == (503, "not_ready")

    asyncio.run(story())


@pytest.mark.parametrize(
    ("owner", "status", "reason", "said"),
    [
        (ClockOwner(GAP), 409, "no_leap", "halted by log_gap"),
        (ClockOwner(ahead_s=0.5), 409, "no_leap", "needs no repair"),
        (ClockOwner(AHEAD, outputs_written=2), 503, "not_ready", "between the timers"),
        (FakeOwner(1, is_open=False), 503, "not_ready", "not open yet"),
    ],
)
def test_a_clock_that_needs_no_repair_or_cannot_be_repaired_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: FakeOwner, status: int, reason: str, said: str
) -> None:
    assignment, broker = RetryAssignment(owner), AskedBroker(monkeypatch)

    async def story() -> None:
        async with running_server(tmp_path, assignment) as server:
            answer = await decide(server, 1, b"repair-clock", {"reason": "why"})
            assert (answer.status, answer.body["reason"], answer.is_problem) == (status, reason, True)
            assert said in answer.body["detail"]
            assert (await decide(server, 1, b"repair-clock", {})).status == 400

    asyncio.run(story())
    assert (assignment.reopened, broker.asked) == ([], [])


def test_no_clock_is_set_while_the_broker_s_is_wrong_or_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assignment, broker = RetryAssignment(ClockOwner(AHEAD)), AskedBroker(monkeypatch, 600.0)

    async def story() -> None:
        async with running_server(tmp_path, assignment) as server:
            answer = await decide(server, 1, b"repair-clock", {"reason": "why"})
            assert (answer.status, answer.body["reason"]) == (409, "clocks_differ")
            assert "+600.0 s from this worker's" in answer.body["detail"]
            broker.ahead_s = None
            answer = await decide(server, 1, b"repair-clock", {"reason": "why"})
            assert (answer.status, answer.body["reason"]) == (503, "not_ready")

    asyncio.run(story())
    assert assignment.reopened == []
