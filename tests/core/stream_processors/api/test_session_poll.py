"""The poll of many sessions: what differs, what was rejected, whose token it is, other workers."""

import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from sessionary.infra.local.ports import free_port
from sessionary.schemas.codec import Decoder, encode_record
from sessionary.schemas.ids import new_session_id, partition_of
from sessionary.schemas.limits import NAME_CHARACTERS_MAX
from sessionary.schemas.records import SessionState, Tombstone
from sessionary.schemas.types import Limits, RejectionReason
from sessionary.stream_processors.api.session_poll import SESSIONS_MAX, verdict_document
from sessionary.stream_processors.core.model import EVENT_ID_KEPT, RecentVerdicts
from sessionary.stream_processors.core.sequencing import OFFSETS_KEPT
from sessionary.stream_processors.core.session.effects import REJECTIONS_KEPT
from sessionary.stream_processors.core.trail import Access
from tests.core.fold_rig import FoldRig
from tests.core.oracle_rig import OracleRig
from tests.core.stream_processors.api.api_server import ApiResponse, FakeAssignment, Server, running_server
from tests.support.event_factory import EventFactory, snapshot_id

PARTITIONS = 4


class RigOwner:
    """Owns a partition whose committed state is that of a fold."""

    def __init__(self) -> None:
        self.rig, self.recent_verdicts = FoldRig(), RecentVerdicts()
        self.committed_s, self.is_readable = time.monotonic(), True
        self.accesses: list[Access] = []

    @property
    def state(self) -> Any:
        return self.rig.fold

    def send(self, agent: EventFactory, event_type: str, **fields: Any) -> str:
        outcome = self.rig.send(agent, event_type, **fields)
        assert self.rig.outcome is not None
        self.recent_verdicts.add_batch(self.rig.outcome.judged)
        return outcome


def owning(owner: RigOwner, *partitions: int) -> FakeAssignment:
    assignment = FakeAssignment()
    assignment.owners = dict.fromkeys(partitions or range(PARTITIONS), owner)
    return assignment


def known(agent: EventFactory, **values: Any) -> dict[str, Any]:
    return {"session_id": agent.key.session_id, "state": "Active", "epoch": 1, **values}


async def poll(server: Server, *sessions: Any, more: bytes = b"", **fields: Any) -> ApiResponse:
    body = json.dumps({"sessions": list(sessions), **fields}).encode()
    return await server.ask(b"/v1/sessions/poll", method=b"POST", body=body, more=more)


def changes(answer: ApiResponse) -> list[dict[str, Any]]:
    assert answer.status == 200, answer
    found: list[dict[str, Any]] = answer.body["sessions"]
    return found


def home(agent: EventFactory) -> int:
    return partition_of(agent.key.encoded(), PARTITIONS)


def test_only_what_differs_is_reported(tmp_path: Path) -> None:
    owner = RigOwner()
    agents = [EventFactory(f"s{n}") for n in range(3)]
    for agent in agents:
        owner.rig.start(agent)
    same, paused, ended = agents
    owner.send(paused, "session_paused")
    owner.send(ended, "session_terminated")

    async def story() -> None:
        async with running_server(tmp_path, owning(owner)) as server:
            answer = await poll(server, *map(known, agents), tenant="acme")
            assert answer.body["tenant"] == "acme"
            assert answer.body["positions"] == {f"{home(agent)}": owner.rig.offset for agent in agents}
            found = {document["session_id"]: document for document in changes(answer)}
            assert found.keys() == {paused.key.session_id, ended.key.session_id}
            assert found[paused.key.session_id] == {
                "session_id": paused.key.session_id,
                "state": "Paused",
                "epoch": 1,
                "holder": "p",
                "holder_epoch": 0,
                "snapshot_id": snapshot_id("paused"),
                "reason_code": "manual",
                "rejections": [],
                "verdict": None,
                "producer_seq": 0,
                "agents": 0,
                "owner_service": "billing",
            }
            assert changes(await poll(server, known(paused, state="Paused"), known(ended, state="Terminated"))) == []
            assert changes(await poll(server, known(same, epoch=2)))[0]["epoch"] == 1

    asyncio.run(story())


def test_a_number_above_the_last_one_of_the_client_is_reported(tmp_path: Path) -> None:
    owner, agent = RigOwner(), EventFactory()
    owner.rig.start(agent)

    async def story() -> None:
        async with running_server(tmp_path, owning(owner)) as server:
            (document,) = changes(await poll(server, known(agent, producer_id="p", last_seq=3)))
            assert (document["producer_seq"], document["state"]) == (4, "Active")
            for own in ({"producer_id": "p", "last_seq": 4}, {"producer_id": "q"}, {"last_seq": 0}):
                assert changes(await poll(server, known(agent, **own))) == []

    asyncio.run(story())


def test_rejected_events_are_reported_once(tmp_path: Path) -> None:
    owner, agent = RigOwner(), EventFactory()
    owner.rig.start(agent)
    assert owner.send(agent, "session_started") == "rejected illegal_transition"
    offset = owner.rig.offset - 1

    async def story() -> None:
        async with running_server(tmp_path, owning(owner)) as server:
            (document,) = changes(await poll(server, known(agent)))
            (rejection,) = document["rejections"]
            assert (rejection["offset"], rejection["reason"]) == (offset, "illegal_transition")
            assert changes(await poll(server, known(agent, rejected_after=offset))) == []

    asyncio.run(story())


def test_a_session_whose_creation_was_rejected_is_reported_with_the_verdict(tmp_path: Path) -> None:
    owner, agent = RigOwner(), EventFactory()
    assert owner.send(agent, "session_created", limits=Limits(idle_ms=-1)) == "rejected invalid_limits"
    partition, offset = home(agent), owner.rig.offset - 1

    async def story() -> None:
        async with running_server(tmp_path, owning(owner)) as server:
            (document,) = changes(await poll(server, known(agent, state="Idle", after=f"{partition}:{offset}")))
            assert document["state"] is None
            assert document["verdict"] == {
                "partition": partition,
                "offset": offset,
                "outcome": "rejected",
                "reason": "invalid_limits",
            }
            owner.recent_verdicts = RecentVerdicts()  # another worker took the partition over
            (document,) = changes(await poll(server, known(agent, state="Idle", after=f"{partition}:{offset}")))
            assert document["verdict"]["outcome"] == "not_kept"
            (document,) = changes(await poll(server, known(agent, state="Idle", after=f"{partition}:{offset + 1}")))
            assert (document["state"], document["verdict"]) == (None, None), "that event is not judged yet"

    asyncio.run(story())


def test_an_archived_session_is_reported_unless_the_client_has_ended_it(tmp_path: Path) -> None:
    owner, agent = RigOwner(), EventFactory()
    owner.rig.fold.rows[agent.key.encoded()] = Tombstone("acme", agent.key.session_id, (), "closed", 1, 7, 1 << 60)

    async def story() -> None:
        async with running_server(tmp_path, owning(owner)) as server:
            (document,) = changes(await poll(server, known(agent)))
            assert (document["state"], document["reason_code"]) == ("Archived", "closed")
            assert changes(await poll(server, known(agent, state="Terminated"))) == []

    asyncio.run(story())


def test_a_session_of_another_tenant_does_not_exist(tmp_path: Path) -> None:
    owner, agent = RigOwner(), EventFactory(tenant="globex")
    owner.rig.start(agent)

    async def story() -> None:
        async with running_server(tmp_path, owning(owner)) as server:
            (document,) = changes(await poll(server, known(agent)))
            assert document["state"] is None

    asyncio.run(story())


@pytest.mark.parametrize(
    "path",
    [b"/v1/sessions/poll", b"/v1/sessions/%s?tenant=globex" % new_session_id().encode()],
    ids=["of sessions", "of one session"],
)
def test_a_token_of_another_tenant_is_said_so(tmp_path: Path, path: bytes) -> None:
    async def story() -> None:
        async with running_server(tmp_path, owning(RigOwner())) as server:
            if path.endswith(b"poll"):
                answer = await poll(server, tenant="globex")
            else:
                answer = await server.ask(path)
            assert answer.is_problem
            assert (answer.status, answer.body["reason"]) == (403, "wrong_tenant")
            assert answer.body["detail"] == "the token is for acme, the client says globex"
            assert (await poll(server)).body == {"tenant": "acme", "positions": {}, "sessions": []}

    asyncio.run(story())


def test_another_number_of_agents_than_the_client_knows_is_reported(tmp_path: Path) -> None:
    owner, agent = RigOwner(), EventFactory()
    owner.rig.start(agent)
    for name in ("r", "w"):
        assert owner.rig.send(agent, "agent_registered", agent_id=name) == "applied"

    async def story() -> None:
        async with running_server(tmp_path, owning(owner)) as server:
            (document,) = changes(await poll(server, known(agent, agents=1)))
            assert (document["agents"], document["state"]) == (2, "Active")
            for said in ({"agents": 2}, {"agents": None}, {}):  # an older client does not say
                assert changes(await poll(server, known(agent, **said))) == []

    asyncio.run(story())


CASES: list[tuple[object, str]] = [
    ({"sessions": 5}, "a list of at most 1000"),
    ({}, "a list of at most 1000"),
    ({"sessions": [{"session_id": new_session_id(), "state": "Active"}] * (SESSIONS_MAX + 1)}, "at most 1000"),
    ({"sessions": [5]}, "sessions[0]: session_id and state"),
    ({"sessions": [{"session_id": "", "state": "Active"}]}, "sessions[0]: session id '' is empty"),
    ({"sessions": [{"session_id": new_session_id(), "state": "Active", "epoch": True}]}, "epoch, rejected_after,"),
    ({"sessions": [{"session_id": new_session_id(), "state": "Active", "last_seq": "1"}]}, "last_seq and agents"),
    ({"sessions": [{"session_id": new_session_id(), "state": "Active", "agents": ""}]}, "agents whole numbers"),
    ({"sessions": [{"session_id": new_session_id(), "state": "Active", "holder": 5}]}, "holder, producer_id and after"),
    ({"sessions": [{"session_id": new_session_id(), "state": "Active", "producer_id": 5}]}, "must be texts or null"),
    ({"sessions": [{"session_id": new_session_id(), "state": "Active", "after": "x"}]}, "use <partition>:<offset>"),
    ({"sessions": [{"session_id": new_session_id(), "state": "Active", "after": "9:1"}]}, "is in partition"),
    ([], "the body is no JSON object"),
]


def test_a_malformed_poll_is_a_problem_document_that_names_the_place(tmp_path: Path) -> None:
    async def story() -> None:
        async with running_server(tmp_path, owning(RigOwner())) as server:
            for body, says in CASES:
                content = json.dumps(body).encode()
                answer = await server.ask(b"/v1/sessions/poll", method=b"POST", body=content)
                assert answer.is_problem, body
                assert (answer.status, answer.body["reason"]) == (400, "invalid_value"), body
                assert says in answer.body["detail"]
            assert (await server.ask(b"/v1/sessions/poll", None, b"POST", body=b"{}")).status == 401
            assert (await server.ask(b"/v1/sessions/poll", b"Bearer op", b"POST", body=b"{}")).status == 403

    asyncio.run(story())


def test_the_owners_of_other_partitions_are_asked_and_those_that_do_not_answer_are_left_out(tmp_path: Path) -> None:
    ports = [free_port(), free_port(), free_port()]
    urls = {n: f"http://127.0.0.1:{port}" for n, port in enumerate([*ports, ports[0]])}
    agents = {home(agent): agent for agent in (EventFactory(f"s{n}") for n in range(100))}
    owners = [RigOwner(), RigOwner()]
    for n, owner in enumerate(owners):
        owner.rig.start(agents[n])
        owner.send(agents[n], "session_paused")
    closed = RigOwner()
    closed.is_readable = False
    ours = owning(owners[0], 0)
    ours.owners[3] = closed

    async def story() -> None:
        async with (
            running_server(tmp_path, ours, urls, "w1", ports[0]) as first,
            running_server(tmp_path, owning(owners[1], 1), urls, "w2", ports[1]) as second,
        ):
            asked = [known(agents[n]) for n in range(PARTITIONS)]
            answer = await poll(first, *asked)
            assert {document["session_id"] for document in changes(answer)} == {
                agents[0].key.session_id,
                agents[1].key.session_id,
            }
            assert answer.body["positions"] == {"0": owners[0].rig.offset, "1": owners[1].rig.offset}
            routed = await poll(second, *asked, more=b"Sessionary-Routed: w1\r\n")
            assert routed.body["positions"].keys() == {"1"}, "a request is passed on at most once"

    asyncio.run(story())


def test_a_worker_that_its_group_does_not_hear_answers_for_no_partition(tmp_path: Path) -> None:
    owner, agent = RigOwner(), EventFactory()
    owner.committed_s = 0.0

    async def story() -> None:
        async with running_server(tmp_path, owning(owner), heartbeat_age_s=3_600.0) as server:
            assert (await poll(server, known(agent))).body == {"tenant": "acme", "positions": {}, "sessions": []}

    asyncio.run(story())


class VerdictRig(OracleRig):
    """A fold whose outcomes are kept, as an owner keeps them, for one session."""

    def __init__(self) -> None:
        super().__init__()
        self.agent, self.recent = EventFactory(), RecentVerdicts()
        self.start(self.agent)

    def append(self, key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes]] = ()) -> str:
        expected = super().append(key, value, headers)
        self.recent.add_batch(self.outcomes[-1].judged)
        return expected

    def deliver(self, value: bytes) -> int:
        """Append a value under the session's key; return its offset."""
        self.append(self.agent.key.encoded(), value)
        return len(self.log) - 1

    def verdict(self, offset: int) -> tuple[str, str | None]:
        """Return the answer of the worker that judged the record."""
        return self._answer(self.recent, self.row_of(self.agent), offset)

    def verdict_after_restart(self, offset: int) -> tuple[str, str | None]:
        """Return the answer of a worker that only has the session's row, from the changelog."""
        row = Decoder().decode_record(encode_record(self.row_of(self.agent), self.fold.position.rules.version))
        assert isinstance(row, SessionState)
        return self._answer(RecentVerdicts(), row, offset)

    def _answer(self, recent: RecentVerdicts, row: SessionState, offset: int) -> tuple[str, str | None]:
        document = verdict_document(recent, row, self.agent.key.encoded(), 3, offset)
        assert (document["partition"], document["offset"]) == (3, offset)
        return document["outcome"], document["reason"]


APPLIED = ("applied", None)
NOT_KEPT = ("not_kept", None)
REJECTED: tuple[str, RejectionReason] = ("rejected", "illegal_transition")


def test_an_unreadable_event_is_rejected_though_the_row_does_not_know_it() -> None:
    rig = VerdictRig()
    assert rig.verdict(rig.deliver(b"\xc3\x01" + b"\x07" * 8 + b"newer schema")) == ("rejected", "unknown_schema")
    cut = rig.agent.event_bytes("session_activity")[:-3]
    assert rig.verdict(rig.deliver(cut)) == ("rejected", "undecodable")


def test_a_repetition_has_the_verdict_of_the_original() -> None:
    rig = VerdictRig()
    rejected, applied = rig.agent.event_bytes("session_resumed"), rig.agent.event_bytes("session_activity")
    assert [rig.verdict(rig.deliver(value)) for value in (rejected, rejected)] == [REJECTED] * 2
    assert [rig.verdict(rig.deliver(value)) for value in (applied, applied)] == [("applied", None)] * 2


def test_an_event_id_of_any_length_costs_no_memory_and_gives_no_false_verdict() -> None:
    rig = VerdictRig()
    for event_type, length, verdict in (
        ("session_activity", EVENT_ID_KEPT, APPLIED),
        ("session_activity", EVENT_ID_KEPT + 1, APPLIED),
        ("session_resumed", EVENT_ID_KEPT + 1, REJECTED),
        ("session_activity", NAME_CHARACTERS_MAX, APPLIED),
    ):
        value = rig.agent.event_bytes(event_type, {"event_id": "x" * length})
        is_kept = length == EVENT_ID_KEPT
        assert rig.verdict(rig.deliver(value)) == verdict
        assert rig.verdict(rig.deliver(value)) == (verdict if is_kept else NOT_KEPT)
        assert list(rig.outcomes[-1].judged.duplicates.values()) == ["x" * length if is_kept else ""]
    too_long = rig.agent.event_bytes("session_activity", {"event_id": "x" * (NAME_CHARACTERS_MAX + 1)})
    assert [rig.verdict(rig.deliver(too_long)) for _ in range(2)] == [("rejected", "invalid_value")] * 2


def test_a_repetition_without_an_id_has_not_the_verdict_of_an_unreadable_event() -> None:
    rig = VerdictRig()
    value = rig.agent.event_bytes("session_activity", {"event_id": ""})
    rig.deliver(b"unreadable")
    assert [rig.verdict(rig.deliver(value)) for _ in range(2)] == [APPLIED, NOT_KEPT]


def test_a_rejection_stays_one_after_many_others() -> None:
    rig = VerdictRig()
    value = rig.agent.event_bytes("session_resumed")
    first = rig.deliver(value)
    for _ in range(REJECTIONS_KEPT):
        rig.send(rig.agent, "session_resumed")
    assert rig.verdict(first) == REJECTED
    assert rig.verdict(rig.deliver(value)) == ("not_kept", None)  # the row has forgotten the original


def test_a_worker_that_did_not_judge_a_record_says_what_the_row_says() -> None:
    rig = VerdictRig()
    rejected = rig.deliver(rig.agent.event_bytes("session_resumed"))
    applied = rig.deliver(rig.agent.event_bytes("session_activity"))
    assert rig.verdict_after_restart(rejected) == REJECTED
    assert rig.verdict_after_restart(applied) == rig.verdict(applied) == APPLIED


def test_the_row_says_what_became_of_a_sessions_last_events() -> None:
    rig = VerdictRig()
    agent, other = rig.agent, EventFactory("another")
    rig.start(other)
    unreadable = rig.deliver(b"\xc3\x01" + b"\x07" * 8 + b"newer schema")
    cut = rig.deliver(agent.event_bytes("session_activity")[:-3])
    foreign = rig.deliver(EventFactory("another").event_bytes("session_activity"))
    rejected = rig.deliver(agent.event_bytes("session_resumed"))
    applied = rig.deliver(agent.event_bytes("session_activity"))
    rig.tick()
    assert [rig.verdict_after_restart(offset) for offset in (0, 1, 2, 3, applied)] == [APPLIED] * 5
    assert rig.verdict_after_restart(unreadable) == ("rejected", "unknown_schema")
    assert rig.verdict_after_restart(cut) == ("rejected", "undecodable")
    assert rig.verdict_after_restart(foreign) == ("rejected", "key_mismatch")
    assert rig.verdict_after_restart(rejected) == REJECTED
    others = [offset for offset, record in enumerate(rig.log) if record.key != agent.key.encoded()]
    assert len(others) == 5
    assert {rig.verdict_after_restart(offset) for offset in (*others, len(rig.log))} == {NOT_KEPT}


@pytest.mark.parametrize("event_type", ["session_resumed", "session_activity"])
def test_a_row_has_no_verdict_on_a_repetition(event_type: str) -> None:
    rig = VerdictRig()
    value = rig.agent.event_bytes(event_type)
    original, repetition = rig.deliver(value), rig.deliver(value)
    verdict = REJECTED if event_type == "session_resumed" else APPLIED
    assert rig.verdict_after_restart(original) == rig.verdict(repetition) == verdict
    assert rig.verdict_after_restart(repetition) == NOT_KEPT


def test_a_row_that_has_forgotten_a_rejection_says_applied_of_no_event_before_the_next() -> None:
    rig, second = VerdictRig(), EventFactory(producer="q")
    second.key = rig.agent.key
    forgotten = rig.deliver(rig.agent.event_bytes("session_resumed"))
    applied = rig.deliver(rig.agent.event_bytes("session_activity"))
    rejections = [rig.deliver(second.event_bytes("session_resumed")) for _ in range(REJECTIONS_KEPT - 1)]
    assert (rig.verdict_after_restart(forgotten), rig.verdict_after_restart(applied)) == (REJECTED, APPLIED)
    rig.deliver(second.event_bytes("session_resumed"))
    assert [rig.verdict_after_restart(offset) for offset in (forgotten, applied)] == [NOT_KEPT] * 2
    later = rig.deliver(rig.agent.event_bytes("session_activity"))
    assert [rig.verdict_after_restart(offset) for offset in (*rejections, later)] == [REJECTED] * len(rejections) + [
        APPLIED
    ]


def test_a_row_knows_the_last_events_of_each_producer() -> None:
    rig, second = VerdictRig(), EventFactory(producer="q")
    second.key = rig.agent.key
    first_of_q = rig.deliver(second.event_bytes("session_activity"))
    work = [rig.deliver(rig.agent.event_bytes("session_activity")) for _ in range(OFFSETS_KEPT)]
    assert [rig.verdict_after_restart(offset) for offset in (*work, first_of_q)] == [APPLIED] * (len(work) + 1)
    rig.deliver(rig.agent.event_bytes("session_activity"))
    assert rig.verdict_after_restart(work[0]) == NOT_KEPT
    assert rig.verdict(work[0]) == rig.verdict_after_restart(work[1]) == APPLIED


def test_another_sessions_record_has_no_verdict_here() -> None:
    rig, other = VerdictRig(), EventFactory("another")
    rig.start(other)
    assert rig.verdict(len(rig.log) - 1) == NOT_KEPT
