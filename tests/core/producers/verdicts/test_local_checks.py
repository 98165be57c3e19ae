"""What the client rejects by itself is what the judge would reject, and nothing else."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any, get_args

import pytest

from sessionary.producers import Invalid, Limits, NotAllowed, Session, SessionEnded
from sessionary.producers.errors import EncodeError
from sessionary.producers.ports import OnReceipt, OutRecord, Receipt
from sessionary.producers.verdicts.local_checks import RAISE_EPOCH, barred_events, later_states
from sessionary.schemas.enums import Phase, SessionStateName, StartFailureReason, TerminationReason
from sessionary.schemas.events import (
    EVENT_TYPES,
    PAYLOADS,
    SessionActivity,
    SessionPhaseChanged,
    SessionResumed,
    SessionStarted,
    SessionStartFailed,
    SessionTerminated,
    UsageRecorded,
)
from sessionary.schemas.records import SessionState
from sessionary.stream_processors.core.sequencing import EPOCH_EXEMPT
from sessionary.stream_processors.core.session.judge import SessionRules, session_rules
from sessionary.stream_processors.core.session.migration import MIGRATION_EVENTS, OFFER_STATES
from sessionary.stream_processors.core.session.transitions import CONTENT_CHANGES, OWNER_ONLY, TRANSITIONS, Objection
from tests.core.fold_rig import FoldRig
from tests.core.producers.judged_memory import JudgedMemory
from tests.support.event_factory import EventFactory

USAGE: Any = UsageRecorded(None, 0, 0, 0, 0, is_timeout_retry=False)
STATES = [state for state in get_args(SessionStateName) if state != "UNKNOWN"]


def row() -> SessionState:
    rig, agent = FoldRig(), EventFactory()
    rig.start(agent)
    return rig.row_of(agent)


# Limits


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        (Limits(idle_ms=-1), "idle_ms is -1; it must be above 0"),
        (Limits(model_ms=5), "model_ms 5 is outside 30000 to 60000; set override"),
        (Limits(idle_ms="5"), "idle_ms is '5', a str: use a whole number"),  # type: ignore[arg-type]
        (Limits(idle_ms=True), "idle_ms is True, a bool: use a whole number"),
        (Limits(override=1), "override is 1, an int: use True or False"),  # type: ignore[arg-type]
        ({"idle_ms": 5}, "limits is of type dict: use sessionary.producers.Limits"),
    ],
)
def test_limits_that_the_judge_rejects_are_an_error_at_creation(limits: Any, says: str) -> None:
    kafka = JudgedMemory()
    client, _ = kafka.client()
    with pytest.raises(Invalid) as raised:
        client.session(user_id="u", limits=limits)
    assert raised.value.reason == "invalid_limits"
    assert says in raised.value.detail
    assert kafka.outcomes == []


def test_limits_that_the_judge_accepts_are_accepted() -> None:
    kafka = JudgedMemory()
    client, _ = kafka.client()
    client.session(user_id="u", limits=Limits(idle_ms=3_000))
    client.session(user_id="u", limits=Limits(model_ms=5, override=True))
    assert set(kafka.outcomes) == {"applied"}


@pytest.mark.parametrize("user_id", ["", None])
def test_a_session_needs_a_user(user_id: Any) -> None:
    kafka = JudgedMemory()
    with pytest.raises(Invalid, match="user_id"):
        kafka.client()[0].session(user_id=user_id)
    assert kafka.outcomes == []


# Values


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ([1], "state is of type list, not a JSON object: use a dict"),
        ("text", "state is of type str, not a JSON object: use a dict"),
        ({1: 2}, "state has the key 1 of type int: keys must be texts"),
        ({"a": [{"b": {None: 1}}]}, "state.a[0].b has the key None of type NoneType: keys must be texts"),
        ({"a": {"b": {1, 2}}}, "state cannot be written as JSON"),
        ({"a": float("nan")}, "state cannot be written as JSON"),
    ],
)
def test_a_state_is_a_json_object(state: Any, says: str) -> None:
    kafka = JudgedMemory()
    client, _ = kafka.client()
    with pytest.raises(Invalid) as raised:
        client.session(user_id="u", state=state)
    assert says in raised.value.detail
    assert kafka.outcomes == []
    session = client.session(user_id="u")
    with pytest.raises(Invalid):
        session.update_state(state)
    assert session.version == 1


def test_a_cyclic_state_is_an_error() -> None:
    state: dict[str, Any] = {}
    state["again"] = [state]
    with pytest.raises(Invalid, match="state cannot be written as JSON"):
        JudgedMemory().client()[0].session(user_id="u", state=state)


@pytest.mark.parametrize(
    ("act", "says"),
    [
        (lambda s: s.emit(USAGE._replace(tokens_in=-5)), "usage_recorded: tokens_in is -5; it must be from 0 to"),
        (lambda s: s.emit(USAGE._replace(tokens_in="many")), "tokens_in is 'many', a str; allowed: int"),
        (lambda s: s.activity(5), "kind is 5, an int; allowed: str"),
        (lambda s: s.pause(kind="tea"), "kind is 'tea'; allowed: manual, migration, review"),
        (lambda s: s.lifecycle.enter_phase("tea"), "phase is 'tea'; allowed: creating, validating"),
        (lambda s: s.emit(USAGE._replace(retry_of=7)), "retry_of is 7, an int; allowed: None, str"),
        (lambda s: s.emit(SessionActivity("llm", None), run_seq="1"), "envelope.run_seq is '1', a str"),
    ],
)
def test_an_error_names_the_field_and_the_allowed_values(act: Callable[[Any], object], says: str) -> None:
    kafka = JudgedMemory()
    session = kafka.client()[0].session(user_id="u")
    kafka.outcomes.clear()
    with pytest.raises(Invalid) as raised:
        act(session)
    assert says in raised.value.detail
    assert kafka.outcomes == []
    session.activity("work")
    assert kafka.outcomes == ["applied"], "no number was used"


def test_an_unknown_data_class_is_named_with_its_place() -> None:
    with pytest.raises(EncodeError) as raised:
        JudgedMemory().client()[0].session(user_id="u", data_classes=("personal", "money"))  # type: ignore[arg-type]
    assert raised.value.detail == (
        "SessionCreated: envelope.data_classes[1] is 'money'; allowed: none, personal, financial, medical, legal"
    )


# Legality


def paused(session: Session) -> None:
    session.pause()


def errored(session: Session) -> None:
    session.error(ValueError("x"))


def active(session: Session) -> None:
    return None


@pytest.mark.parametrize(
    ("reach", "act", "says"),
    [
        (paused, lambda s: s.activity("llm"), "session_activity is not possible in Paused: resume() the session first"),
        (paused, lambda s: s.pause(), "session_paused is not possible in Paused"),
        (paused, lambda s: s.update_state({"n": 2}), "state_updated is not possible in Paused"),
        (paused, lambda s: s.complete(), "session_terminated with reason 'completed' is not possible in Paused"),
        (paused, lambda s: s.error(ValueError("x")), "session_errored is not possible in Paused"),
        (errored, lambda s: s.activity("llm"), "session_activity is not possible in Error: recover() or close()"),
        (errored, lambda s: s.update_state({"n": 2}), "state_updated is not possible in Error"),
        (errored, lambda s: s.complete(), "allowed: forced, recovery_failed, unrecoverable"),
        (active, lambda s: s.start(), "session_phase_changed with phase 'validating' is not possible in Active"),
        (active, lambda s: s.lifecycle.fail_start("invalid_config"), "session_start_failed is not possible in Active"),
    ],
)
def test_what_the_state_does_not_allow_is_an_error(
    reach: Callable[[Session], None], act: Callable[[Any], object], says: str
) -> None:
    kafka = JudgedMemory()
    session = kafka.client()[0].session(user_id="u", state={"n": 1})
    reach(session)
    before = (session.local_state, session.version, session.state, len(kafka.outcomes))
    with pytest.raises(NotAllowed) as raised:
        act(session)
    assert says in raised.value.detail
    assert raised.value.state == session.local_state
    assert (session.local_state, session.version, session.state, len(kafka.outcomes)) == before
    session.close()
    assert kafka.outcomes[-1] == "applied"


def test_what_completes_work_is_possible_while_paused() -> None:
    kafka = JudgedMemory()
    session = kafka.client()[0].session(user_id="u")
    session.pause()
    session.usage(tokens_in=5)
    session.snapshot()
    session.resume()
    session.activity("llm")
    assert set(kafka.outcomes) == {"applied"}


@pytest.mark.parametrize("state", ["Idle", "Active"])
def test_what_another_process_may_have_made_possible_is_left_to_the_judge(state: str) -> None:
    kafka = JudgedMemory()
    first, second = kafka.client()[0], kafka.client()[0]
    session = first.create(user_id="u")
    shared = second.attach(session.session_id)
    shared.start()
    if state == "Idle":
        session.activity("the other one has started it")
        assert kafka.outcomes[-1] == "applied"
        return
    session.sync()
    shared.pause()
    session.emit(SessionResumed(None, None))  # the other one paused it
    assert kafka.outcomes[-1] == "applied"


def test_a_pause_that_was_lost_leaves_everything_to_the_judge() -> None:
    class LossyKafka(JudgedMemory):
        loses = False

        def send(self, record: OutRecord, on_receipt: OnReceipt | None = None) -> None:
            if not self.loses:
                super().send(record, on_receipt)
            elif on_receipt is not None:
                on_receipt(Receipt(None, None, "dropped"))

    kafka = LossyKafka()
    session = kafka.client()[0].session(user_id="u")
    kafka.loses = True
    session.pause()
    kafka.loses = False
    session.activity("llm")
    assert kafka.outcomes[-1] == "applied"


def test_what_a_shared_session_did_itself_is_left_to_the_judge_as_another_one_may_undo_it() -> None:
    kafka = JudgedMemory()
    first, second = kafka.client()[0], kafka.client()[0]
    session = first.session(user_id="u")
    shared = second.attach(session.session_id)
    session.snapshot()
    shared.pause()  # rejected: the chain of snapshots has another head
    assert kafka.outcomes[-1] == "rejected broken_chain"
    shared.activity("llm")
    assert kafka.outcomes[-1] == "applied"


def test_a_pause_that_was_reported_rejected_leaves_everything_to_the_judge() -> None:
    kafka = JudgedMemory()
    client = kafka.polling_client(on_rejected=lambda rejected: None)
    session = client.session(user_id="u")
    kafka.client()[0].attach(session.session_id).snapshot()
    session.pause()
    assert kafka.outcomes[-1] == "rejected broken_chain"
    client.core.watch.poll_now()
    session.activity("llm")
    assert kafka.outcomes[-1] == "applied"


def test_the_state_that_the_processor_reported_counts_for_a_shared_session_too() -> None:
    kafka = JudgedMemory()
    first, second = kafka.client()[0], kafka.client()[0]
    session = first.session(user_id="u")
    session.pause()
    shared = second.attach(session.session_id)
    with pytest.raises(NotAllowed):
        shared.activity("llm")
    shared.resume()
    shared.activity("llm")
    assert kafka.outcomes[-1] == "applied"


def test_what_only_the_owning_service_may_do_is_an_error_elsewhere() -> None:
    kafka = JudgedMemory()
    owner, other = kafka.client()[0], kafka.client(service_id="shop")[0]
    session = owner.session(user_id="u", state={"n": 1})
    shared = other.attach(session.session_id)
    with pytest.raises(NotAllowed, match=r"session_paused is for the owning service only, which shop is not") as raised:
        shared.pause()
    assert raised.value.reason == "not_owner"
    shared.activity("llm")
    assert kafka.outcomes[-1] == "applied"
    with pytest.raises(NotAllowed) as raised:
        shared.update_state({"n": 2})
    assert (raised.value.reason, shared.version) == ("not_member", 1)


def test_an_ended_session_says_that_it_has_ended() -> None:
    session = JudgedMemory().client()[0].session(user_id="u")
    session.close()
    with pytest.raises(SessionEnded):
        session.activity("llm")


# The judge's table


def test_the_events_that_raise_the_epoch_are_those_of_the_table() -> None:
    before = row()
    raising = {each.event_type for each in TRANSITIONS if each.source and each.effect(before, 1).epoch > before.epoch}
    assert raising == RAISE_EPOCH


def test_without_a_higher_epoch_states_only_go_forward() -> None:
    assert later_states("Paused") == {"Paused", "Terminated", "Archived"}
    assert later_states("Active") == set(STATES) - {"Idle"}
    assert later_states("Idle") == set(STATES)


PHASE_NAMES: list[Any] = [*get_args(Phase)]
PAYLOADS_BY_VALUE: dict[type[Any], list[Any]] = {
    SessionTerminated: [SessionTerminated(reason, None, None) for reason in get_args(TerminationReason)],
    SessionStartFailed: [SessionStartFailed(reason, None) for reason in get_args(StartFailureReason)],
    SessionPhaseChanged: [SessionPhaseChanged(phase) for phase in PHASE_NAMES],
}


def accepted_values(rules: SessionRules, state: str, cls: type[Any], field: str) -> set[str]:
    """Return the values of a field with which the judge accepts an event in some phase."""
    event_type, found = EVENT_TYPES[cls], set()
    rule = rules.by_event.get((state, event_type))
    for payload in PAYLOADS_BY_VALUE[cls] if rule is not None else ():
        value = getattr(payload, field)
        if value in rules.clock_reasons.get(event_type, ()):
            continue
        rows = [row()._replace(state=state, phase=phase) for phase in (None, *PHASE_NAMES)]  # type: ignore[arg-type]
        if rule is not None and any(not isinstance(rule(each, payload, 1), Objection) for each in rows):
            found.add(value)
    return found


@pytest.mark.parametrize("state", STATES)
def test_what_is_barred_is_what_no_later_state_accepts(state: str) -> None:
    by_agents = [each for each in TRANSITIONS if each.by != "operator"]
    rules, bars = session_rules(by_agents), barred_events(state, is_owner=True)
    for event_type, cls in PAYLOADS.items():
        possible = any((later, event_type) in rules.by_event for later in later_states(state))
        bar = bars.get(cls)
        if event_type in EPOCH_EXEMPT or event_type in MIGRATION_EVENTS - {"session_migration_completed"}:
            can_offer = event_type != "session_migration_offered" or later_states(state) & OFFER_STATES
            assert (bar is None) == bool(can_offer)
        elif not possible:
            assert bar is not None
            assert not bar.allowed
        elif bar is not None:
            assert bar.field is not None
            accepted = (accepted_values(rules, later, cls, bar.field) for later in later_states(state))
            assert bar.allowed == set().union(*accepted)


def test_what_is_another_services_is_barred_in_every_state() -> None:
    for state in STATES:
        bars = barred_events(state, is_owner=False)
        barred = {EVENT_TYPES[cls] for cls, bar in bars.items() if bar.reason in ("not_owner", "not_member")}
        migrations = MIGRATION_EVENTS - {"session_migration_completed"}  # the target's, or an operator's
        assert barred == (OWNER_ONLY | CONTENT_CHANGES) - EPOCH_EXEMPT - migrations


@pytest.mark.parametrize("state", [state for state in STATES if state not in ("Idle", "Terminated", "Archived")])
def test_ordinary_work_is_barred_exactly_if_no_later_state_accepts_it(state: SessionStateName) -> None:
    bars = barred_events(state, is_owner=True)
    assert (SessionActivity in bars) == (state != "Active")
    assert SessionStarted in bars


def test_the_judges_rules_are_imported_at_the_first_session_only() -> None:
    script = """
import sys
from sessionary.producers import ProducerSettings, SessionClient
settings = ProducerSettings.from_env({}, disabled=True)
client = SessionClient(tenant_id="acme", service_id="s", agent_id="a", settings=settings)
print(sorted(name for name in sys.modules if name.startswith("sessionary.stream_processors")))
with client.session(user_id="u"):
    pass
print("sessionary.stream_processors.core.session.transitions" in sys.modules)
print(sorted({name.partition(".")[0] for name in sys.modules} & {"faust", "aiohttp", "rocksdict", "prometheus_client"}))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.split("\n")[:3] == ["[]", "True", "[]"]
