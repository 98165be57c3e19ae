"""The core on an in-memory outside: sequence, verbs, ways out, verdicts."""

import hashlib
import json
import uuid
from collections.abc import Callable

import pytest

from sessionary.producers import (
    ClientClosed,
    DeliveryFailed,
    Invalid,
    ProducerSettings,
    Refused,
    Session,
    SessionEnded,
    SessionLost,
    SettingsError,
    Unavailable,
    VerdictPending,
)
from sessionary.producers.delivery.emitter import Sequences
from sessionary.producers.ports import OnReceipt, OutRecord
from sessionary.producers.testing import InMemoryTransport, memory_client
from sessionary.schemas.events import (
    LlmDecision,
    SessionCreated,
    SessionErrored,
    SessionPaused,
    SessionResumed,
    SessionStarted,
    SessionStartFailed,
    SessionTerminated,
    StateUpdated,
)
from sessionary.schemas.ids import SessionKey

START = ["session_created", "session_phase_changed", "session_phase_changed", "session_started"]


def types(memory: InMemoryTransport, session_id: str | None = None) -> list[str]:
    return [event.envelope.event_type for event in memory.events(session_id)]


def test_readme_size_example() -> None:
    client, memory = memory_client(tenant_id="acme", service_id="billing", agent_id="agent-1")
    with client, client.session(user_id="u1", state={"step": 0}, data_classes=("personal",)) as s:
        s.activity("llm", "thinking")
        s.emit(LlmDecision(model="m", chosen_tools=["search"]))
        s.usage(model="m", tokens_in=120, tokens_out=40, model_cost_usd_micros=900)
        s.progress(0.5, total=1.0)
        s.update_state({"step": 1})
        s.pause("waiting for a human")
        assert s.resume() == {"step": 1}
        s.complete("done")
    assert types(memory)[-1] == "session_terminated"


def test_every_event_of_a_session_takes_the_next_number_and_heartbeats_none() -> None:
    client, memory = memory_client()
    with client:
        first, second = (client.session(user_id="u") for _ in range(2))
        for _ in range(5):
            first.activity("a")
            second.info("b")
        for session in (first, second):
            session.beat()
            session.close()
        for session in (first, second):
            events = memory.events(session.session_id)
            assert [event.envelope.producer_seq for event in events] == list(range(1, len(events) + 1))
        assert {event.envelope.producer_id for event in memory.events()} == {client.producer_id}
        assert [event.envelope.producer_seq for event in memory.heartbeats()] == [0, 0]


def test_the_start_sends_its_phases_in_order() -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as s:
        s.activity("x")
    assert types(memory) == [*START, "session_activity", "session_terminated"]
    phases = [json.loads(json.dumps(event.payload))[0] for event in memory.events()[1:3]]
    assert phases == ["validating", "connecting"]


def nothing(session: Session) -> None:
    return None


def pause(session: Session) -> None:
    session.pause()


def error(session: Session) -> None:
    session.error(ValueError("x"))


@pytest.mark.parametrize(
    ("before", "raised", "last"),
    [
        (nothing, None, ["closed"]),
        (pause, None, ["cancelled"]),
        (error, None, ["unrecoverable"]),
        (nothing, ValueError, ["session_errored", "unrecoverable"]),
        (pause, ValueError, ["cancelled"]),
        (error, ValueError, ["unrecoverable"]),
        (nothing, KeyboardInterrupt, ["abnormal_termination"]),
        (nothing, SystemExit, ["abnormal_termination"]),
        (pause, KeyboardInterrupt, ["cancelled"]),
        (error, KeyboardInterrupt, ["forced"]),
    ],
)
def test_leaving_sends_the_legal_last_event(
    before: Callable[[Session], None], raised: type[BaseException] | None, last: list[str]
) -> None:
    client, memory = memory_client()

    def body() -> None:
        with client.session(user_id="u") as s:
            before(s)
            if raised is not None:
                raise raised

    with client:
        if raised is None:
            body()
        else:
            with pytest.raises(raised):
                body()
        sent = memory.events()[-len(last) :]
        said = [e.payload.reason if isinstance(e.payload, SessionTerminated) else e.envelope.event_type for e in sent]
        assert said == last
        assert types(memory).count("session_terminated") == 1


@pytest.mark.parametrize(("step", "reason"), [("validate", "invalid_config"), ("connect", "connection_failed")])
def test_a_start_that_fails_ends_the_session_and_raises(step: str, reason: str) -> None:
    client, memory = memory_client()

    def fail() -> None:
        raise OSError("no")

    with client:
        with pytest.raises(OSError, match="no"):
            client.session(user_id="u", validate=fail if step == "validate" else None, connect=fail)
        failed = memory.events()[-1].payload
        assert isinstance(failed, SessionStartFailed)
        assert failed.reason == reason
        assert failed.message == "OSError: no"


def test_a_session_that_was_ended_takes_no_more_verbs_and_close_is_harmless() -> None:
    client, memory = memory_client()
    with client:
        s = client.session(user_id="u")
        s.complete()
        s.close()
        with pytest.raises(SessionEnded):
            s.activity("x")
        assert types(memory).count("session_terminated") == 1


def test_a_detached_session_leaves_without_a_word() -> None:
    client, memory = memory_client()
    with client:
        with client.session(user_id="u") as s:
            s.detach()
        assert types(memory) == START


def test_snapshots_form_a_chain_and_hash_canonical_json() -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u", state={"b": 1, "a": "ö"}) as s:
        s.pause()
        s.resume()
    created, paused, ended = (
        event.payload.snapshot
        for event in memory.events()
        if isinstance(event.payload, SessionCreated | SessionPaused | SessionTerminated)
    )
    assert created is not None
    assert paused is not None
    assert ended is not None
    assert [created.parent_snapshot_id, paused.parent_snapshot_id, ended.parent_snapshot_id] == [
        None,
        created.snapshot_id,
        paused.snapshot_id,
    ]
    assert created.state_json == '{"a":"ö","b":1}'
    assert created.content_hash == hashlib.sha256(created.state_json.encode()).hexdigest()
    assert len(created.snapshot_id) == len("snap_") + 12
    resumed = next(event.payload for event in memory.events() if isinstance(event.payload, SessionResumed))
    assert resumed.snapshot_id == paused.snapshot_id


def test_update_state_counts_versions_and_sends_its_phases() -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u", state={"n": 0}) as s:
        assert [s.update_state({"n": n}) for n in (1, 2)] == [2, 3]
        assert s.state == {"n": 2}
    updates = [event.payload for event in memory.events() if isinstance(event.payload, StateUpdated)]
    assert [(u.base_version, u.new_version) for u in updates] == [(1, 2), (2, 3)]
    assert types(memory)[4:7] == ["session_phase_changed", "session_phase_changed", "state_updated"]


def test_the_epoch_is_adopted_from_the_verdict_and_used_from_then_on() -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as s:
        s.pause()
        s.resume()
        s.error(TimeoutError("slow"))
        s.recover()
        assert s.epoch == 3
    by_type = {(event.envelope.event_type, event.envelope.epoch) for event in memory.events()}
    assert {
        ("session_resumed", 1),
        ("session_errored", 2),
        ("session_recovered", 2),
        ("session_terminated", 3),
    } <= by_type
    errored = next(event.payload for event in memory.events() if isinstance(event.payload, SessionErrored))
    assert errored.error.error_class == "retryable"


def test_a_refusal_is_raised_and_leaves_the_session_where_it_was() -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as s:
        s.pause()
        memory.refuse_next("max_duration_exceeded")
        with pytest.raises(Refused) as refused:
            s.resume()
        assert refused.value.reason == "max_duration_exceeded"
        assert (s.local_state, s.epoch) == ("Paused", 1)
        s.resume()
        assert (s.local_state, s.epoch) == ("Active", 2)


def test_without_a_verdict_nothing_else_is_sent_and_nothing_twice() -> None:
    client, memory = memory_client(settings=ProducerSettings.from_env({}, verdict_timeout_s=0.05))
    with client, client.session(user_id="u") as s:
        s.pause()
        memory.silence_control(silent=True)
        for _ in range(2):
            with pytest.raises(Unavailable):
                s.resume()
        with pytest.raises(VerdictPending, match="resume"):
            s.activity("x")
        memory.silence_control(silent=False)
        s.resume()
        s.activity("x")
    assert types(memory).count("session_resumed") == 1


def test_attach_learns_state_and_epoch_and_goes_on_in_the_same_sequence() -> None:
    client, memory = memory_client()
    with client:
        first = client.session(user_id="u", state={"n": 1})
        first.pause()
        again = client.attach(first.session_id)
        assert (again.local_state, again.epoch, again.state) == ("Paused", 1, {"n": 1})
        assert again.resume() == {"n": 1}
        again.close()
        numbers = [event.envelope.producer_seq for event in memory.events()]
        assert numbers == list(range(1, len(numbers) + 1))
        with pytest.raises(SessionLost):
            client.attach(str(uuid.uuid4()))


@pytest.mark.parametrize("name", ["", "a b", "a:b", "-a", "x" * 129])
def test_names_are_checked(name: str) -> None:
    with pytest.raises(Invalid):
        memory_client(tenant_id=name)
    with pytest.raises(Invalid):
        memory_client(service_id=name)


def test_values_that_cannot_be_accepted_take_no_number() -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u") as s:
        with pytest.raises(Invalid, match="reference"):
            s.activity("big", "x" * (1 << 20))
        with pytest.raises(Invalid, match="state_too_large"):
            s.update_state({"big": "x" * (1 << 20)})
        with pytest.raises(Invalid):
            s.update_state({"set": {1, 2}})
        with pytest.raises(Invalid):
            s.update_state({"nan": float("nan")})
        with pytest.raises(Invalid):
            s.activity(7)  # type: ignore[arg-type]
        s.activity("fine")
    assert types(memory) == [*START, "session_activity", "session_terminated"]
    with pytest.raises(Invalid):
        client.create(user_id="u", session_id="not-a-uuid")


def test_a_closed_client_says_so() -> None:
    client, memory = memory_client()
    s = client.session(user_id="u")
    client.close()
    client.close()
    with pytest.raises(ClientClosed):
        s.activity("x")
    with pytest.raises(ClientClosed):
        client.create(user_id="u")
    assert types(memory) == START


def test_marks_reach_the_envelope_and_the_trace_its_header() -> None:
    client, memory = memory_client()
    trace = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
    with client, client.session(user_id="u") as s:
        s.context_bytes = 42
        s.emit(LlmDecision(), run_id="r", step_id="s", causation_id="c", actor="boss", traceparent=trace, occurred_at=7)
    event, record = memory.events()[4], memory.records()[4]
    envelope = event.envelope
    assert (envelope.run_id, envelope.step_id, envelope.causation_id) == ("r", "s", "c")
    assert (envelope.actor, envelope.occurred_at, envelope.context_bytes) == ("boss", 7, 42)
    assert ("traceparent", trace.encode()) in record.headers


@pytest.mark.parametrize("version", [4, 7])
def test_session_ids_are_of_the_version_that_was_set(version: int) -> None:
    client, _ = memory_client(settings=ProducerSettings.from_env({}, session_id_version=version))
    with client:
        assert uuid.UUID(client.create(user_id="u").session_id).version == version


def test_a_forgotten_sequence_goes_on_as_a_new_producer() -> None:
    sequences = Sequences("first", limit=2)
    keys = [SessionKey("t", str(n)) for n in range(3)]
    known = [sequences.of(key, new=True) for key in keys]
    assert {sequence.producer_id for sequence in known} == {"first"}
    assert sequences.of(keys[2]) is known[2]
    again = sequences.of(keys[0])
    assert again.producer_id != "first"
    assert again.last == 0


def test_a_session_started_without_the_context_manager() -> None:
    client, memory = memory_client()
    with client:
        s: Session = client.create(user_id="u")
        assert s.local_state == "Idle"
        s.start()
        assert isinstance(memory.events()[-1].payload, SessionStarted)
        client.create(user_id="u").close()
        assert isinstance(memory.events()[-1].payload, SessionStartFailed)


def test_settings_come_from_the_environment() -> None:
    written = {
        "delivery_policy": "drop",
        "control_url": "http://c",
        "session_id_version": "7",
        "handle_sigterm": "false",
    }
    settings = ProducerSettings.from_env({f"SESSIONARY_{name.upper()}": value for name, value in written.items()})
    assert {name: getattr(settings, name) for name in written} == {
        **written,
        "session_id_version": 7,
        "handle_sigterm": False,
    }
    with pytest.raises(SettingsError, match="SESSIONARY_SESSION_ID_VERSION"):
        ProducerSettings.from_env({"SESSIONARY_SESSION_ID_VERSION": "five"})


@pytest.mark.parametrize("refused", [False, True])
def test_a_resume_whose_place_the_broker_does_not_know_is_told_by_the_epoch(refused: bool) -> None:
    client, memory = memory_client(settings=ProducerSettings.from_env({}, verdict_timeout_s=0.3))
    send = memory.send

    def send_without_place(record: OutRecord, on_receipt: OnReceipt | None = None) -> None:
        told = on_receipt and (lambda receipt: on_receipt(receipt._replace(offset=None)))
        send(record, told)

    with client, client.session(user_id="u", state={"n": 1}) as s:
        s.pause()
        memory.send = send_without_place  # type: ignore[method-assign]
        if refused:
            memory.refuse_next("version_conflict")
            with pytest.raises(DeliveryFailed, match="place in the log is unknown"):
                s.resume()
            assert (s.local_state, s.epoch) == ("Paused", 1)
        else:
            assert s.resume() == {"n": 1}
            assert (s.local_state, s.epoch) == ("Active", 2)
    assert types(memory).count("session_resumed") == 1
