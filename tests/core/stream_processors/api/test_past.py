"""What the control API answers about a session's state at a point of its history."""

import asyncio
import json
import time
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp.test_utils import make_mocked_request
from aiohttp.web import Response

import sessionary.stream_processors.api.past as past_module
from sessionary.schemas.ids import SessionKey
from sessionary.schemas.records import Position
from sessionary.stream_processors.access import parse_tokens
from sessionary.stream_processors.api.past import PastPage, PastStates
from sessionary.stream_processors.api.problems import Problem
from sessionary.stream_processors.api.routing import OtherWorkers
from sessionary.stream_processors.api.session_questions import SessionQuestions
from sessionary.stream_processors.api.tokens import TokenStore
from sessionary.stream_processors.core.model import RecentVerdicts
from sessionary.stream_processors.core.past import PastState, Point
from sessionary.stream_processors.core.trail import hash_row
from sessionary.stream_processors.errors import Lost, StateExpired
from sessionary.stream_processors.metrics import Metrics
from sessionary.stream_processors.settings import ProcessorSettings
from tests.core.past_rig import PastRig
from tests.core.stream_processors.api.api_server import no_end
from tests.core.stream_processors.api.test_sessions import FakeGroup
from tests.support.event_factory import EventFactory

OPERATOR = {"principal": "ops", "roles": ["operator"]}
USER = {"tenant": "acme", "user": "another"}
OWN = {"tenant": "acme", "user": "u1"}
SETTINGS = ProcessorSettings(
    api_tokens=parse_tokens({"token": "acme", "other": "zeta", "ops": OPERATOR, "user": USER, "own": OWN}),
    api_port=4242,
    partitions=1,
)
DAY_S = 86_400


class PageRig:
    """A page over a log that is kept; it counts the folds."""

    def __init__(self) -> None:
        self.rig, self.agent = PastRig(), EventFactory()
        self.rig.start(self.agent)
        self.metrics, self.folds, self.now_s, self.fault = Metrics(), 0, self.rig.at / 1_000, None
        owner: Any = SimpleNamespace(
            state=self.rig.fold,
            is_readable=True,
            committed_s=time.monotonic(),
            recent_verdicts=RecentVerdicts(),
            wait_until_committed=self._yes,
            wait_until_merged=self._yes,
        )
        assignment: Any = SimpleNamespace(owners={0: owner})
        others = OtherWorkers(SETTINGS, FakeGroup())
        questions = SessionQuestions(SETTINGS, TokenStore(SETTINGS, Metrics()), assignment, others, no_end)
        self.clock_s = 0.0
        self.page = PastPage(
            questions, self.metrics, PastStates(10, 3_600, lambda: self.clock_s), self._read, lambda: self.now_s
        )

    fault: Exception | None
    begun_ms: int | None = None

    async def _yes(self, *given: Any) -> bool:
        return True

    def _read(
        self, session: SessionKey, partition: int, point: Point, end: Position, begun_ms: int | None
    ) -> PastState:
        self.folds += 1
        self.begun_ms = begun_ms
        if self.fault is not None:
            raise self.fault
        return self.rig.read(session, partition, point, end)

    def ask(self, query: str, token: str = "token", session_id: str | None = None) -> tuple[int, Any]:
        return asyncio.run(self.answer(query, token, session_id))

    async def answer(self, query: str, token: str = "token", session_id: str | None = None) -> tuple[int, Any]:
        session_id = session_id or self.agent.key.session_id
        request = make_mocked_request(
            "GET",
            f"/v1/sessions/{session_id}/at?{query}",
            headers={"Authorization": f"Bearer {token}"},
            match_info={"session_id": session_id},
        )
        try:
            response = await self.page.at(request)
        except Problem as problem:
            response = problem.to_response()
        assert isinstance(response, Response)
        assert isinstance(response.body, bytes)
        return response.status, json.loads(response.body)


@pytest.fixture
def rig() -> PageRig:
    return PageRig()


def test_a_past_state_is_folded_from_the_log_and_then_kept(rig: PageRig) -> None:
    before = rig.rig.row_of(rig.agent)
    offset = rig.rig.offset - 1
    assert rig.rig.send(rig.agent, "state_updated") == "applied"
    rig.rig.send(rig.agent, "session_paused")
    status, found = rig.ask(f"offset={offset}")
    assert (status, found["source"], found["check"]["verdict"], found["state"]) == (200, "log", "equal", "Active")
    assert found["row"]["version"] == before.version
    assert found["row"]["state_json"] == before.state_json
    assert found["row_hash"] == hash_row(before)
    assert found["position"]["offset"] == offset
    assert rig.begun_ms == before.created_at
    again = rig.ask(f"offset={offset}")[1]
    assert (again["source"], rig.folds) == ("memory", 1)
    assert {**again, "source": "log"} == found


def test_the_eleventh_state_takes_the_place_of_the_oldest_one_and_an_hour_is_the_longest(rig: PageRig) -> None:
    """R-003-33: the last 10 states; an entry older than 1 h is a miss."""
    for _ in range(12):
        rig.rig.send(rig.agent, "session_activity")
    offsets = [rig.rig.offset - 2 - n for n in range(11)]
    for offset in offsets:
        assert rig.ask(f"offset={offset}")[1]["source"] == "log"
    assert rig.ask(f"offset={offsets[1]}")[1]["source"] == "memory"
    assert rig.ask(f"offset={offsets[0]}")[1]["source"] == "log"
    rig.clock_s = 3_601
    assert rig.ask(f"offset={offsets[-1]}")[1]["source"] == "log"


def test_a_memory_of_no_states_keeps_none(rig: PageRig) -> None:
    """R-003-83: each tier is a choice; this one is turned off by 0."""
    state, point = rig.rig.past(rig.agent, Point("offset", 1)), Point("offset", 1)
    for states_max, kept in ((0, None), (1, state)):
        states = PastStates(states_max, 3_600)
        states.keep(rig.agent.key, point, state)
        assert states.find(rig.agent.key, point) is kept


def test_the_last_folded_record_is_answered_from_the_row_and_equals_the_log(rig: PageRig) -> None:
    offset = rig.rig.offset - 1
    of_row = rig.ask(f"offset={offset}")[1]
    assert (of_row["source"], rig.folds) == ("row", 0)
    rig.rig.send(rig.agent, "session_activity")
    of_log = rig.ask(f"offset={offset}")[1]
    assert of_log["source"] == "log"
    for name in ("row", "row_hash", "children", "position", "state"):
        assert of_log[name] == of_row[name], name


def test_a_time_at_which_more_may_happen_is_not_kept(rig: PageRig) -> None:
    at_ms = rig.rig.at - 1  # of the last record, and the clock
    found = rig.ask(f"time_ms={at_ms}")[1]
    assert (found["position"]["clock_ms"], found["row"]["version"]) == (at_ms, 1)
    rig.rig.at = at_ms
    assert rig.rig.send(rig.agent, "state_updated") == "applied"
    assert rig.ask(f"time_ms={at_ms}")[1]["row"]["version"] == 2
    rig.rig.send(rig.agent, "session_activity")
    sources = [rig.ask(f"time_ms={at_ms}")[1]["source"] for _ in range(2)]
    assert sources == ["log", "memory"]


def test_who_waits_for_the_fold_of_the_same_point_gets_its_state(rig: PageRig) -> None:
    async def ask_both() -> tuple[tuple[int, Any], ...]:
        return await asyncio.gather(rig.answer("offset=1"), rig.answer("offset=1"))

    answers = asyncio.run(ask_both())
    assert ([found["source"] for _, found in answers], rig.folds) == (["log", "memory"], 1)


@pytest.mark.parametrize("query", ["", "offset=1&time_ms=2", "offset=x", "time_ms=-1", "point=3"])
def test_not_exactly_one_good_point_is_refused(rig: PageRig, query: str) -> None:
    status, problem = rig.ask(query)
    assert (status, problem["reason"], rig.folds) == (400, "invalid_value", 0)


@pytest.mark.parametrize("query", ["offset=900", "time_ms=5", "event=none", "snapshot=none"])
def test_an_unknown_point_is_no_point(rig: PageRig, query: str) -> None:
    status, problem = rig.ask(query)
    assert (status, problem["reason"]) == (404, "no_such_point")


@pytest.mark.parametrize("folds_on", [False, True])
def test_a_partition_of_many_rows_is_looked_through_in_parts(
    rig: PageRig, monkeypatch: pytest.MonkeyPatch, folds_on: bool
) -> None:
    assert rig.rig.send(rig.agent, "run_started", {"run_id": "mine"}, mode="attached") == "applied"
    for number in range(5):
        rig.rig.start(EventFactory(f"other {number}"))
    offset, pauses = rig.rig.offset - 1, 0

    async def pause(_seconds: float) -> None:
        nonlocal pauses
        pauses += 1
        if folds_on and pauses == 1:
            rig.rig.send(rig.agent, "session_activity")

    monkeypatch.setattr(past_module, "_KEYS_SLICE", 2)
    monkeypatch.setattr(asyncio, "sleep", pause)
    status, found = rig.ask(f"offset={offset}")
    assert (status, found["source"]) == (200, "log" if folds_on else "row")
    assert pauses >= 3
    assert [child["kind"] for child in found["children"]] == ["RunState"]
    assert found["position"]["offset"] == offset


@pytest.mark.parametrize("token", ["other", "user"])
def test_another_tenants_or_users_session_is_unknown(rig: PageRig, token: str) -> None:
    status, problem = rig.ask("offset=1", token=token)
    assert (status, problem["reason"], rig.folds) == (404, "unknown_session", 0)


@pytest.mark.parametrize("source", ["row", "log"])
def test_a_run_of_another_user_is_no_part_of_a_session(rig: PageRig, source: str) -> None:
    for run_id, user in (("mine", "u1"), ("hers", "u2")):
        envelope = {"run_id": run_id, "user_id": user}
        assert rig.rig.send(rig.agent, "run_started", envelope, mode="attached") == "applied"
        assert rig.rig.send(rig.agent, "checkpoint_saved", envelope, data_json="1") == "applied"
    offset = rig.rig.offset - 1
    if source == "log":
        rig.rig.send(rig.agent, "session_activity")
    (_, whole), (_, own) = (rig.ask(f"offset={offset}", token=token) for token in ("token", "own"))
    assert whole["source"] == source
    assert len(whole["children"]) == 4
    assert json.dumps(whole).count("hers") > 2
    assert json.dumps(own).count("hers") == 0
    assert [child for child in whole["children"] if child["run_id"] == "mine"] == own["children"]
    assert [run["run_id"] for run in own["row"]["open_runs"]] == ["mine"]
    assert own["row_hash"] == whole["row_hash"]


@pytest.mark.parametrize("query", ["", "offset=x"])
def test_who_may_not_ask_learns_nothing_of_the_query(rig: PageRig, query: str) -> None:
    refused = [rig.ask(query, token=token) for token in ("unknown", "ops", "other", "user")]
    assert [status for status, _ in refused] == [401, 403, 404, 404]
    assert rig.folds == 0


def test_only_a_reader_may_ask(rig: PageRig) -> None:
    status, _ = rig.ask("offset=1&tenant=acme", token="ops")
    assert (status, rig.folds) == (403, 0)


def test_what_is_gone_is_expired_and_a_silent_broker_is_asked_again(rig: PageRig) -> None:
    rig.fault = StateExpired("the events before are deleted")
    status, problem = rig.ask("offset=1")
    assert (status, problem["reason"], problem["detail"]) == (410, "expired", "expired: the events before are deleted")
    rig.fault = Lost("silent")
    assert rig.ask("offset=1")[0] == 503


def test_personal_content_expires_also_if_its_state_is_kept(rig: PageRig) -> None:
    assert rig.ask("offset=1")[0] == 200
    rig.now_s += 31 * DAY_S
    status, problem = rig.ask("offset=1")
    assert (status, problem["reason"]) == (410, "expired")
    assert problem["detail"].startswith("expired on 2023-12-14: ")


def test_a_state_that_differs_is_an_error_that_pages(rig: PageRig) -> None:
    trail = rig.rig.trail
    trail[:] = [audit._replace(row_hash=audit.row_hash and audit.row_hash[:-1] + "x") for audit in trail]
    rig.rig.send(rig.agent, "session_activity")
    status, problem = rig.ask(f"offset={rig.rig.offset - 2}")
    assert (status, problem["reason"]) == (500, "state_differs")
    found = rig.metrics.exposition().decode()
    assert 'sessionary_processor_state_hash_mismatches_total{source="log"} 1.0' in found
