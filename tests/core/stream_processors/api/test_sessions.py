"""What the control API answers, without a broker: if the owner may have changed or is elsewhere."""

import asyncio
import json
import time
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import ClientSession
from aiohttp.test_utils import make_mocked_request
from aiohttp.web import Response

from sessionary.schemas.ids import SessionKey, new_session_id, partition_of
from sessionary.schemas.kafka.log_progress import StalledPartition
from sessionary.schemas.records import Position, Tombstone
from sessionary.schemas.types import Limits
from sessionary.stream_processors.access import Caller, parse_tokens
from sessionary.stream_processors.api.problems import Problem
from sessionary.stream_processors.api.routing import OtherWorkers
from sessionary.stream_processors.api.session_questions import AskedOwner, Question, session_document
from sessionary.stream_processors.api.sessions import ControlApi
from sessionary.stream_processors.api.tokens import TokenStore
from sessionary.stream_processors.errors import Halted
from sessionary.stream_processors.metrics import Metrics
from sessionary.stream_processors.settings import ProcessorSettings
from tests.core.oracle_rig import OracleRig
from tests.core.stream_processors.api.api_server import ends_at, no_end
from tests.support.event_factory import EventFactory

SETTINGS = ProcessorSettings(api_tokens=parse_tokens({"token": "acme"}), api_port=4242)
KEY = SessionKey("acme", new_session_id())
PARTITION = partition_of(KEY.encoded(), SETTINGS.partitions)


class FakeOwner:
    """Owns the session's partition; its state holds a tombstone."""

    def __init__(self, heard_s: float, is_open: bool = True) -> None:
        self.committed_s, self.is_readable, self.is_open = heard_s, is_open, is_open
        self.halted: Halted | None = None
        self.state = self
        self.position = Position(100, 0, 0, 0, 0)
        self.rows = {KEY.encoded(): Tombstone("acme", KEY.session_id, (), "closed", 1, 7, 99)}
        self.packed: set[bytes] = set()

    def is_packed(self, key: bytes) -> bool:
        return key in self.packed

    async def wait_until_committed(self, offset: int, timeout_s: float) -> bool:
        return self.is_readable and offset < self.position.next_offset

    async def wait_until_folded(self, end: int, timeout_s: float) -> bool:
        return self.is_readable and end <= self.position.next_offset

    async def wait_until_merged(self, timeout_s: float) -> bool:
        return True  # no transaction is under way


class FakeGroup:
    """Acknowledged a heartbeat at `heard_s` (monotonic); None: just now, whenever it is asked."""

    def __init__(self, heard_s: float | None = None, urls: Mapping[int, str] | None = None) -> None:
        self._heard_s, self._urls = heard_s, urls or {}
        self.end: int | None = None

    def owner_urls(self) -> Mapping[int, str]:
        return self._urls

    def worker_urls(self) -> Iterable[str]:
        return self._urls.values()

    def heartbeat_s(self) -> float:
        return time.monotonic() if self._heard_s is None else self._heard_s

    def http_client(self) -> ClientSession:
        raise AssertionError("nothing is to be passed on")


class FakeAssignment:
    def __init__(self, *owners: FakeOwner) -> None:
        self.owners = dict.fromkeys([PARTITION], owners[0]) if owners else {}
        self.is_ready = True


def ask(assignment: FakeAssignment, group: FakeGroup, query: str = "", **headers: str) -> Response:
    any_assignment: Any = assignment
    metrics = Metrics()
    tokens, others = TokenStore(SETTINGS, metrics), OtherWorkers(SETTINGS, group)
    api = ControlApi(SETTINGS, tokens, any_assignment, metrics, others, ends_at(group.end), lambda: True, dict)
    path = f"/v1/sessions/{KEY.session_id}{query}"
    given = {"Authorization": "Bearer token", **headers}
    request = make_mocked_request("GET", path, headers=given, match_info={"session_id": KEY.session_id})
    try:
        return asyncio.run(api.session(request))
    except Problem as problem:
        return problem.to_response()


def problem(response: Response) -> tuple[int, str]:
    assert isinstance(response.body, bytes)
    return response.status, json.loads(response.body)["reason"]


def test_an_owner_answers_if_its_group_answered_within_a_session_time_out() -> None:
    long_ago_s = time.monotonic() - SETTINGS.session_timeout_ms / 1_000 - 1
    now_s = time.monotonic() + 3_600  # the machine may stand still meanwhile
    for committed_s, heartbeat_s, wanted in (
        (now_s, now_s, (410, "session_archived")),
        (now_s, long_ago_s, (410, "session_archived")),
        (long_ago_s, now_s, (410, "session_archived")),
        (long_ago_s, long_ago_s, (503, "not_ready")),
    ):
        assert problem(ask(FakeAssignment(FakeOwner(committed_s)), FakeGroup(heartbeat_s))) == wanted


@pytest.mark.parametrize(
    ("urls", "headers"),
    [
        ({}, {}),  # the owner is unknown
        ({PARTITION: SETTINGS.api_url}, {}),  # the group names this worker, which does not own it
        ({PARTITION: "http://other:0"}, {}),  # the owner has no API
        ({PARTITION: "http://other:1"}, {"Sessionary-Routed": "w2"}),  # another worker passed it on
    ],
)
def test_a_request_is_passed_on_at_most_once(urls: Mapping[int, str], headers: Mapping[str, str]) -> None:
    response = ask(FakeAssignment(), FakeGroup(urls=urls), **headers)
    assert problem(response) == (503, "not_ready")
    assert response.headers["Retry-After"] == "1"


def test_a_partition_that_is_not_open_or_not_there_yet_is_not_ready() -> None:
    now_s = time.monotonic()
    group = FakeGroup()
    assert problem(ask(FakeAssignment(FakeOwner(now_s, is_open=False)), group)) == (503, "not_ready")
    assert problem(ask(FakeAssignment(FakeOwner(now_s)), group, f"?after={PARTITION}:100")) == (503, "not_ready")
    assert problem(ask(FakeAssignment(FakeOwner(now_s)), group, f"?after={PARTITION}:99")) == (410, "session_archived")
    for end, found in ((100, (410, "session_archived")), (101, (503, "not_ready")), (None, (503, "not_ready"))):
        group.end = end
        assert problem(ask(FakeAssignment(FakeOwner(now_s)), group, "?after=end")) == found


def test_of_an_archived_session_a_row_or_a_packed_tombstone_remains() -> None:
    owner, group = FakeOwner(time.monotonic()), FakeGroup()
    assert problem(ask(FakeAssignment(owner), group)) == (410, "session_archived")
    owner.rows.clear()
    assert problem(ask(FakeAssignment(owner), group)) == (404, "unknown_session")
    owner.packed.add(KEY.encoded())
    assert problem(ask(FakeAssignment(owner), group)) == (410, "session_archived")


def health_api(
    assignment: FakeAssignment,
    stalled: Mapping[int, StalledPartition],
    heartbeat_s: float | None = None,
    hung: str | None = None,
) -> ControlApi:
    any_assignment: Any = assignment
    metrics, group = Metrics(), FakeGroup(heartbeat_s)
    tokens, others = TokenStore(SETTINGS, metrics), OtherWorkers(SETTINGS, group)
    return ControlApi(
        *(SETTINGS, tokens, any_assignment, metrics, others, no_end), lambda: True, lambda: stalled, lambda: hung
    )


def ask_readiness(api: ControlApi) -> tuple[int, object]:
    response = asyncio.run(api.readyz(make_mocked_request("GET", "/readyz")))
    assert isinstance(response.body, bytes)
    return response.status, json.loads(response.body)["partitions"]


def read_readiness(owner: FakeOwner, stalled: Mapping[int, StalledPartition]) -> tuple[int, object]:
    return ask_readiness(health_api(FakeAssignment(owner), stalled))


def test_a_worker_that_has_started_stays_ready_while_a_partition_opens_or_is_halted() -> None:
    owner, assignment = FakeOwner(0.0, is_open=False), FakeAssignment()
    assignment.owners, assignment.is_ready = {PARTITION: owner}, False
    api = health_api(assignment, {})
    assert ask_readiness(api) == (503, {str(PARTITION): "opening"}), "it starts"
    assignment.is_ready = owner.is_open = owner.is_readable = True
    assert ask_readiness(api)[0] == 200
    assignment.is_ready = owner.is_open = owner.is_readable = False
    assert ask_readiness(api) == (200, {str(PARTITION): "opening"})
    owner.halted = Halted("log_gap", "gone")
    assert ask_readiness(api) == (200, {str(PARTITION): "halted: log_gap: gone"})


def test_a_worker_that_its_group_does_not_hear_is_not_ready() -> None:
    long_ago_s = time.monotonic() - SETTINGS.session_timeout_ms / 1_000 - 1
    assert ask_readiness(health_api(FakeAssignment(FakeOwner(0.0)), {}, long_ago_s))[0] == 503
    assert ask_readiness(health_api(FakeAssignment(FakeOwner(0.0)), {}))[0] == 200


def test_a_part_that_hangs_makes_the_worker_unhealthy() -> None:
    request = make_mocked_request("GET", "/healthz")
    assert asyncio.run(health_api(FakeAssignment(), {}).healthz(request)).status == 200
    response = asyncio.run(health_api(FakeAssignment(), {}, hung="fetching has hung for 31 s").healthz(request))
    assert isinstance(response.body, bytes)
    assert (response.status, json.loads(response.body)["detail"]) == (503, "fetching has hung for 31 s")


def test_a_worker_is_not_ready_while_an_open_partition_stands_still() -> None:
    stalled = StalledPartition(52, 80, 17.2)
    other = (PARTITION + 1) % SETTINGS.partitions
    assert read_readiness(FakeOwner(0.0), {}) == (200, {str(PARTITION): "open"})
    state = "stands at offset 52 for 17 s, the log ends at 80"
    assert read_readiness(FakeOwner(0.0), {PARTITION: stalled}) == (503, {str(PARTITION): state})
    # What was seen before the partition left, or began to open again, says nothing.
    assert read_readiness(FakeOwner(0.0), {other: stalled}) == (200, {str(PARTITION): "open"})
    assert read_readiness(FakeOwner(0.0, is_open=False), {PARTITION: stalled})[1] == {str(PARTITION): "opening"}


def reported_deadline(rig: OracleRig, agent: EventFactory) -> int:
    """Return the deadline that the API tells of an agent's session."""
    owner: Any = SimpleNamespace(state=rig.fold)
    asked = AskedOwner(Question(agent.key, 0, None, 0.0, Caller(tenant="acme", principal="acme")), owner)
    deadline: int = session_document(rig.row_of(agent), asked)["deadline_ms"]
    return deadline


def test_the_deadline_that_is_reported_is_when_the_session_s_clock_fires() -> None:
    rig, agent = OracleRig(), EventFactory()
    rig.start(agent, limits=Limits(idle_ms=70_000))
    assert reported_deadline(rig, agent) == rig.at + 60_000
    rig.at += 50_000
    rig.tick()  # an outage ends
    reported_ms = reported_deadline(rig, agent)
    assert reported_ms == rig.at + 60_000
    assert rig.advance(reported_ms - rig.at - 1) == []
    assert rig.advance(1) == ["T06 inactive"]


def test_the_deadline_that_is_reported_goes_by_a_repaired_clock() -> None:
    rig, agent = OracleRig(), EventFactory()
    rig.start(agent, limits=Limits(max_duration_ms=40_000))
    rig.at += 86_400_000
    rig.set_clock()
    reported_ms = reported_deadline(rig, agent)
    assert reported_ms == rig.at + 40_000
    assert rig.advance(reported_ms - rig.at - 1) == []
    assert rig.advance(1) == ["T06 max_duration"]
