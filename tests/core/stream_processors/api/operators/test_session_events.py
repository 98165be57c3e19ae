"""An event that a person asks for, on its way to a broker."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sessionary.schemas.codec import Event, encode_event
from sessionary.schemas.events import RequestsRepeated
from sessionary.schemas.ids import SessionKey, partition_of
from sessionary.schemas.types import Limits
from sessionary.stream_processors.api.operators import session_events
from sessionary.stream_processors.api.operators.session_events import EventSender, LogPosition
from sessionary.stream_processors.core import sequencing
from sessionary.stream_processors.errors import Lost
from sessionary.stream_processors.settings import ProcessorSettings
from tests.auditor.signatures import SECRETS
from tests.core.oracle_rig import SETTINGS, OracleRig
from tests.core.stream_processors.api.api_server import ApiResponse, FakeAssignment, Server, running_server
from tests.core.stream_processors.api.documented.served_state import StateOwner
from tests.support.event_factory import EventFactory, payload_of
from tests.support.mock_cluster import mock_cluster

PARTITIONS = 4


def an_event() -> tuple[Event, int]:
    agent = EventFactory()
    event = Event(agent.envelope("session_paused"), payload_of("session_paused"))
    return event, partition_of(agent.key.encoded(), PARTITIONS)


def test_an_event_goes_to_the_partition_of_its_session_and_its_place_is_known() -> None:
    event, partition = an_event()
    with mock_cluster() as cluster:
        settings = ProcessorSettings(
            bootstrap_servers=cluster.bootstrap_servers, partitions=PARTITIONS, signing_keys=SECRETS
        )
        sender = EventSender(settings)
        first, second = sender.send_event(event), sender.send_event(event)
        sender.close()
        assert first.partition == second.partition == partition
        assert second.offset == first.offset + 1
        sender.close()


def test_an_event_that_no_broker_takes_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_events, "_TIMEOUT_S", 0.5)
    sender = EventSender(
        ProcessorSettings(bootstrap_servers="127.0.0.1:1", partitions=PARTITIONS, signing_keys=SECRETS)
    )
    for _ in range(2):  # with a new producer, too
        with pytest.raises(Lost, match="session_paused was not acknowledged"):
            sender.send_event(an_event()[0])
    sender.close()


class Kafka:
    """Appends events to the log of a rig, which judges them at once."""

    def __init__(self) -> None:
        self.rig = OracleRig(SETTINGS._replace(partitions=1))
        self.agent = EventFactory()
        self.rig.start(self.agent, limits=Limits(hold_ms=60_000))
        self.sent: list[Event] = []
        self.before: list[Callable[[], object]] = []  # what others append before the next event
        self.fails = False

    def send_event(self, event: Event) -> LogPosition:
        if self.fails:
            raise Lost("session_paused was not acknowledged: no answer")
        if self.before:
            self.before.pop(0)()
        self.sent.append(event)
        offset = self.rig.next_offset
        self.rig.append(SessionKey(event.envelope.tenant_id, event.envelope.session_id).encoded(), encode_event(event))
        return LogPosition(0, offset)

    def hold_and_resume(self) -> None:
        """Let the agent raise the epoch by itself."""
        assert self.rig.send(self.agent, "session_paused") == "applied"
        assert self.rig.send(self.agent, "session_resumed") == "applied"


Story = Callable[[Server, Kafka], Awaitable[None]]


def tell(folder: Path, story: Story, kafka: Kafka | None = None) -> Kafka:
    kafka = kafka or Kafka()
    assignment = FakeAssignment()
    assignment.owners = {0: StateOwner(0, kafka.rig.fold)}

    async def run() -> None:
        async with running_server(folder, assignment, partitions=1, send_event=kafka.send_event) as server:
            await story(server, kafka)

    asyncio.run(run())
    return kafka


async def act(
    server: Server, kafka: Kafka, action: str, body: Any = None, key: str | None = None, **options: Any
) -> ApiResponse:
    path = f"/v1/sessions/{kafka.agent.key.session_id}/{action}?tenant={options.pop('tenant', 'acme')}"
    more = b"" if key is None else f"Idempotency-Key: {key}\r\n".encode()
    content = json.dumps({"reason": "look"} if body is None else body).encode()
    return await server.ask(
        path.encode(), options.pop("auth", b"Bearer op"), b"POST", b"Content-Type: application/json\r\n" + more, content
    )


def test_an_operator_pauses_and_resumes(tmp_path: Path) -> None:
    async def story(server: Server, kafka: Kafka) -> None:
        paused = await act(server, kafka, "pause")
        assert (paused.status, paused.body["state"], paused.body["epoch"]) == (200, "Paused", 1)
        assert paused.body["verdict"]["outcome"] == "applied"
        assert paused.body["snapshot_id"] == kafka.rig.row_of(kafka.agent).snapshot.snapshot_id
        resumed = await act(server, kafka, "resume")
        assert (resumed.status, resumed.body["state"], resumed.body["epoch"]) == (200, "Active", 2)

    first, second = tell(tmp_path, story).sent
    assert (first.envelope.actor, first.envelope.service_id, first.envelope.producer_seq) == (
        "on-call",
        "control-api",
        1,
    )
    assert first.envelope.producer_id != second.envelope.producer_id


def test_a_pause_names_its_time_and_the_session_who_holds_it(tmp_path: Path) -> None:
    async def story(server: Server, kafka: Kafka) -> None:
        for wrong in (999, 30 * 86_400_000 + 1, True, "1800"):
            refused = await act(server, kafka, "pause", {"reason": "look", "hold_ms": wrong})
            assert (refused.status, refused.body["reason"]) == (400, "invalid_value"), wrong
        assert kafka.sent == []
        assert (await act(server, kafka, "pause", {"reason": "look", "hold_ms": 30_000})).status == 200
        page = await server.ask(f"/v1/sessions/{kafka.agent.key.session_id}".encode())
        until_ms = kafka.rig.row_of(kafka.agent).entered_at + 30_000
        assert page.body["hold"] == {"by": "on-call", "until_ms": until_ms}
        assert page.body["deadline_ms"] == until_ms
        assert kafka.rig.send(kafka.agent, "session_resumed") == "rejected operator_only"
        assert (await act(server, kafka, "resume")).body["state"] == "Active"
        page = await server.ask(f"/v1/sessions/{kafka.agent.key.session_id}".encode())
        assert page.body["hold"] is None

    tell(tmp_path, story)


def test_an_operator_of_a_user_steps_in_on_that_users_sessions_alone(tmp_path: Path) -> None:
    async def story(server: Server, kafka: Kafka) -> None:
        for action in ("pause", "resume", "cancel", "approve", "deny"):
            other = await act(server, kafka, action, auth=b"Bearer of-u2")
            assert (other.status, other.body["reason"]) == (404, "unknown_session"), action
        assert kafka.sent == []
        assert (await act(server, kafka, "pause", auth=b"Bearer of-u1")).status == 200

    tell(tmp_path, story)


def test_a_question_is_answered_by_name(tmp_path: Path) -> None:
    async def story(server: Server, kafka: Kafka) -> None:
        sent = kafka.rig.send(kafka.agent, "session_paused", {"event_id": "q1"}, kind="review", question="Go on?")
        assert sent == "applied"
        for auth in (b"Bearer op", b"Bearer op-of-acme", b"Bearer token"):
            listed = await server.ask(b"/v1/waiting", auth)
            (waiting,) = listed.body["waiting"]
            assert (waiting["question_id"], waiting["question"], waiting["owner_service"]) == (
                "q1",
                "Go on?",
                "billing",
            )
            assert waiting["deadline_ms"] - waiting["asked_ms"] == 60_000
        assert (await act(server, kafka, "resume")).body["reason"] == "question_open"
        other = await act(server, kafka, "approve", {"question_id": "q2"})
        assert (other.status, other.body["reason"]) == (409, "no_question")
        approved = await act(server, kafka, "approve", {"question_id": "q1", "reason": "fine"})
        assert (approved.status, approved.body["reason_code"]) == (200, "approved")
        page = await server.ask(f"/v1/sessions/{kafka.agent.key.session_id}".encode())
        assert page.body["question"] is None
        assert page.body["answers"] == [
            {
                "question_id": "q1",
                "approved": True,
                "reason_code": "approved",
                "by": "on-call",
                "text": "fine",
            }
        ]
        assert page.body["is_answer_new"] is True
        assert (await server.ask(b"/v1/waiting", b"Bearer op")).body["waiting"] == []

    tell(tmp_path, story)


@pytest.mark.parametrize("action", ["pause", "resume", "cancel", "approve", "deny"])
def test_only_operators_may(tmp_path: Path, action: str) -> None:
    async def story(server: Server, kafka: Kafka) -> None:
        assert (await act(server, kafka, action, auth=b"Bearer token")).status == 403
        assert (await act(server, kafka, action, auth=b"Bearer unknown")).status == 401

    assert tell(tmp_path, story).sent == []


def test_a_request_with_its_key_is_judged_once(tmp_path: Path) -> None:
    async def story(server: Server, kafka: Kafka) -> None:
        first = await act(server, kafka, "pause", key="k1")
        again = await act(server, kafka, "pause", key="k1")
        assert (first.status, again.status) == (200, 200)
        assert again.body["event_id"] == first.body["event_id"]
        assert again.body["verdict"] == first.body["verdict"]
        rejected = await act(server, kafka, "approve", key="k2")
        assert (rejected.status, rejected.body["reason"]) == (409, "no_question")
        assert (await act(server, kafka, "approve", key="k2")).body == rejected.body

    assert len(tell(tmp_path, story).sent) == 2


def test_a_stale_epoch_is_tried_again(tmp_path: Path) -> None:
    async def story(server: Server, kafka: Kafka) -> None:
        kafka.before = [kafka.hold_and_resume, kafka.hold_and_resume]
        answer = await act(server, kafka, "pause", key="k1")
        assert (answer.status, answer.body["state"], answer.body["epoch"]) == (200, "Paused", 3)
        assert (await act(server, kafka, "pause", key="k1")).body["event_id"] == answer.body["event_id"]

    kafka = tell(tmp_path, story)
    assert [(event.envelope.epoch, event.envelope.producer_seq) for event in kafka.sent] == [(1, 1), (2, 2), (3, 3)]
    assert len({event.envelope.producer_id for event in kafka.sent}) == 1


def test_retries_have_a_limit(tmp_path: Path) -> None:
    async def story(server: Server, kafka: Kafka) -> None:
        kafka.before = [kafka.hold_and_resume] * 9
        answer = await act(server, kafka, "pause")
        assert (answer.status, answer.body["reason"]) == (503, "not_ready")

    assert len(tell(tmp_path, story).sent) == 5


def test_what_cannot_be_judged_is_a_problem(tmp_path: Path) -> None:
    async def story(server: Server, kafka: Kafka) -> None:
        assert (await act(server, kafka, "pause", {})).status == 400
        assert (await act(server, kafka, "pause", {"reason": " "})).status == 400
        assert (await act(server, kafka, "pause", {"reason": "x" * 16_385})).status == 400
        assert (await act(server, kafka, "pause", key="x" * 257)).status == 400
        assert (await act(server, kafka, "pause", tenant="")).status == 400
        assert (await act(server, kafka, "pause", tenant="zeta")).status == 404
        kafka.fails = True
        assert (await act(server, kafka, "pause")).status == 503

    assert tell(tmp_path, story).sent == []


def test_an_operator_of_a_tenant_reaches_that_tenant_alone(tmp_path: Path) -> None:
    async def story(server: Server, kafka: Kafka) -> None:
        foreign = await act(server, kafka, "pause", auth=b"Bearer op-of-acme", tenant="zeta")
        assert (foreign.status, foreign.body["reason"]) == (403, "wrong_tenant")
        assert (await server.ask(b"/v1/waiting?tenant=zeta", b"Bearer op-of-acme")).status == 403
        assert (await act(server, kafka, "pause", auth=b"Bearer op-of-acme")).status == 200

    (sent,) = tell(tmp_path, story).sent
    assert sent.envelope.actor == "alice"


def test_an_operator_lists_the_open_requests_of_a_session_and_has_them_sent_again(tmp_path: Path) -> None:
    async def story(server: Server, kafka: Kafka) -> None:
        session_id = kafka.agent.key.session_id
        nothing = await act(server, kafka, "ask-again")
        assert (nothing.status, nothing.body["reason"]) == (409, "nothing_open")
        assert (await server.ask(b"/v1/open-requests", b"Bearer op")).body["open_requests"] == []
        assert kafka.rig.send(kafka.agent, "session_terminated", reason="closed") == "applied"
        cleanup_id = kafka.rig.row_of(kafka.agent).cleanups[0].cleanup_id
        request = {"topic": "cleanup", "id": cleanup_id, "service_id": "billing", "what": "closed"}
        head = {"tenant_id": "acme", "session_id": session_id, "owner_service": "billing", "state": "Terminated"}
        for path in (
            "/v1/open-requests",
            "/v1/open-requests?tenant=acme",
            f"/v1/open-requests?session_id={session_id}",
        ):
            listed = await server.ask(path.encode(), b"Bearer op")
            assert listed.body["open_requests"] == [{**head, "requests": [request]}], path
        other = await server.ask(b"/v1/open-requests?session_id=" + session_id[1:].encode(), b"Bearer op")
        assert other.body["open_requests"] == []
        assert (await server.ask(b"/v1/open-requests", b"Bearer token")).body["open_requests"] != []
        first, second = [await act(server, kafka, "ask-again", key="k1") for _ in range(2)]
        assert (first.status, first.body["requests"], first.body) == (200, [request], second.body)
        assert (await act(server, kafka, "ask-again", {})).status == 400
        assert (await act(server, kafka, "ask-again", auth=b"Bearer token")).status == 403

    kafka = tell(tmp_path, story)
    (event,) = kafka.sent
    assert event.payload == RequestsRepeated("look", as_operator=True)
    ((_, again),) = kafka.rig.outcomes[-1].records_on("cleanup")
    assert again.cleanup_id == kafka.rig.row_of(kafka.agent).cleanups[0].cleanup_id


def test_requests_of_a_script_are_one_sender_and_leave_room_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sequencing, "PRODUCERS_MAX", 3)
    monkeypatch.setattr(sequencing, "FORGOTTEN_MAX", 1)

    async def story(server: Server, kafka: Kafka) -> None:
        assert kafka.rig.send(kafka.agent, "run_queued", {"run_id": "r1"}, mode="detached") == "applied"
        answers = [await act(server, kafka, "ask-again") for _ in range(8)]
        assert {answer.status for answer in answers} == {200}
        assert len({answer.body["event_id"] for answer in answers}) == 8
        assert (await act(server, kafka, "pause")).status == 200

    kafka = tell(tmp_path, story)
    assert [event.envelope.producer_seq for event in kafka.sent] == [*range(1, 9), 1]
    assert len({event.envelope.producer_id for event in kafka.sent}) == 2


def test_a_script_s_request_is_sent_again_if_another_one_took_its_number(tmp_path: Path) -> None:
    async def story(server: Server, kafka: Kafka) -> None:
        assert kafka.rig.send(kafka.agent, "run_queued", {"run_id": "r1"}, mode="detached") == "applied"
        assert (await act(server, kafka, "ask-again", key="k1")).status == 200
        other = kafka.sent[0]
        taken = other._replace(envelope=other.envelope._replace(producer_seq=2, event_id="another's"))
        kafka.before = [partial(kafka.send_event, taken)]
        answer = await act(server, kafka, "ask-again", key="k2")
        assert answer.status == 200
        assert (await act(server, kafka, "ask-again", key="k2")).body["event_id"] == answer.body["event_id"]

    kafka = tell(tmp_path, story)
    assert [event.envelope.producer_seq for event in kafka.sent] == [1, 2, 2, 3]
