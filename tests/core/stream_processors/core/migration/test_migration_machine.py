"""Whatever services, an operator and time do to a session that migrates, six invariants hold."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from sessionary.stream_processors.core.children import call as calls
from sessionary.stream_processors.core.children.call import BY_EVENT
from sessionary.stream_processors.core.model import Decision
from sessionary.stream_processors.core.session import effects
from sessionary.stream_processors.core.session import judge as decide
from sessionary.stream_processors.core.session import migration as judge
from sessionary.stream_processors.core.session.facts import MigrationCompleted
from sessionary.stream_processors.core.session.migration import LET_GO
from tests.core.stream_processors.core.migration.migration_machine import MigrationMachine
from tests.core.stream_processors.core.migration.protocol_account import (
    AUDITS,
    COMMITS,
    EPOCHS,
    HASHES,
    INVARIANTS,
    OWNERS,
    SUCCESSES,
    Line,
    ProtocolAccount,
    Step,
)
from tests.core.stream_processors.core.migration.protocol_model import Said, hash_of

Story = Callable[[MigrationMachine], None]
Fault = Callable[[pytest.MonkeyPatch], None]
# Reached even by few examples.
OFTEN = {
    *(f"{kind}: applied" for kind in ("offer", "load", "accept", "abort", "claim", "write", "start_call", "end_call")),
    *("offer: rejected not_owner", "load: rejected unknown_migration", "accept: rejected migration_moved"),
    *("claim: rejected owner_alive", "again: duplicate"),
    *(f"end: {why}" for why in ("migrated", "state_differs", "taken_over", "session_ended", "target_silent")),
    *(f"clock: {clock}" for clock in ("T06", "T08", "call", "migration")),
}
RARELY = {
    *(f"end: {why}" for why in ("expired", "called_off", "declined", "session_resumed")),
    *(f"offer: rejected {why}" for why in ("migration_open", "invalid_value", "illegal_transition")),
    *(f"start_call: rejected call_{why}" for why in ("in_progress", "succeeded", "unresolved")),
    *(f"{kind}: rejected {why}_epoch" for kind in ("load", "accept", "claim") for why in ("stale", "future")),
    *("accept: rejected not_owner", "accept: rejected illegal_transition", "resume: rejected question_open"),
    "resume: rejected migration_open",
    *("clock: T05", "clock: T09", "beat: rejected stale_epoch", "work: rejected stale_epoch", "work: rejected late"),
}


def run_machine(examples: int, steps: int, **more: Any) -> set[str]:
    """Run examples of the machine; return what they reached."""
    MigrationMachine.reached.clear()
    chosen = settings(max_examples=examples, stateful_step_count=steps, **more)
    run_state_machine_as_test(MigrationMachine, settings=chosen)
    return set(MigrationMachine.reached)


def test_the_protocol_holds_whatever_is_sent() -> None:
    assert OFTEN - run_machine(180, 30) == set()


def test_the_protocol_holds_in_many_more_examples() -> None:
    assert (OFTEN | RARELY) - run_machine(500, 50) == set()


# Each invariant can fail: by what the account is reported, and by a fault of the product.

WORK = Said("work", "billing", 1)
ACCEPTANCE = Said("accept", "shipping", 1, version=1, content=hash_of("{}"))
MOVED: dict[str, Any] = {"epoch": 2, "owner": "shipping"}


def step(said: Said | None, verdict: str = "applied", **differs: Any) -> Step:
    sound = Step(said, "e1", verdict, (), (), epoch=1, owner="billing", version=1, content="{}")
    return sound._replace(**differs)


def rejection(reason: str, lines: int = 1, letters: int = 1, event_id: str = "e1") -> Step:
    written = [Line("rejection", event_id, 1, "billing")] * lines
    return step(WORK, f"rejected {reason}", event_id=event_id, lines=written, letters=[reason] * letters)


def broken_by(*steps: Step) -> set[str]:
    account = ProtocolAccount("billing")
    for one in steps:
        account.take(one)
    return {name for name, found in account.found.items() if found}


def test_what_is_sound_breaks_nothing() -> None:
    moved = step(ACCEPTANCE, lines=[Line("migration", "e1", 2, "shipping", "completed")], **MOVED)
    wrote = step(WORK._replace(kind="write", content="[]"), version=2, content="[]")
    done = step(Said("end_call", "billing", 1, key="k", succeeded=True))
    rejected = rejection("stale_epoch", event_id="e2")
    late = rejection("late", event_id="e3"), rejection("late", lines=0, event_id="e4")
    beat = step(WORK._replace(kind="beat"), "rejected stale_epoch", letters=["stale_epoch"])
    assert broken_by(step(WORK), done, moved, step(WORK._replace(epoch=2), **MOVED)) == set()
    assert broken_by(rejected, *late, beat, wrote) == set()


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        (EPOCHS, [step(WORK._replace(epoch=2)), step(WORK)]),
        (EPOCHS, [step(None, **MOVED), step(None)]),
        (OWNERS, [step(WORK, owner="shipping")]),
        (OWNERS, [step(WORK, lines=[Line("transition", "e1", 1, "shipping")])]),
        (COMMITS, [step(None, lines=[Line("take_over", None, 2, "shipping")], **MOVED), step(WORK, **MOVED)]),
        (COMMITS, [step(ACCEPTANCE, lines=[Line("migration", "e1", 2, "shipping", "completed")], **MOVED)] * 2),
        (HASHES, [step(ACCEPTANCE._replace(content=hash_of("[]")), **MOVED)]),
        (HASHES, [step(ACCEPTANCE._replace(version=2), **MOVED)]),
        (HASHES, [step(WORK._replace(kind="write", content="[]"))]),
        (AUDITS, [rejection("late", lines=0)]),
        (AUDITS, [rejection("stale_epoch", lines=2)]),
        (AUDITS, [rejection("stale_epoch")] * 2),
        (AUDITS, [rejection("stale_epoch", letters=0)]),
        (AUDITS, [step(WORK, lines=[Line("rejection", "e1", 1, "billing")])]),
        (SUCCESSES, [step(Said("end_call", "billing", 1, key="k", succeeded=True))] * 2),
    ],
)
def test_each_invariant_can_be_broken_alone(name: str, steps: Sequence[Step]) -> None:
    assert broken_by(*steps) == {name}


def accept_past_epochs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(decide, "epoch_rejection", lambda *_: None)


def raise_no_epoch(patch: pytest.MonkeyPatch) -> None:
    right = effects._EFFECTS[MigrationCompleted]

    def complete(row: Any, fact: Any) -> Any:
        return right(row, fact)._replace(epoch=row.epoch)

    patch.setitem(effects._EFFECTS, MigrationCompleted, complete)


def accept_any_state(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(judge, "content_hash", lambda _: hash_of("{}!"))


def audit_no_rejection(patch: pytest.MonkeyPatch) -> None:
    right = decide._reject_kept

    def reject(*arguments: Any) -> Decision:
        decision: Decision = right(*arguments)
        *facts, rejected = decision.facts
        decision.facts = (*facts, rejected._replace(audited=False))
        return decision

    patch.setattr(decide, "_reject_kept", reject)


def succeed_again(patch: pytest.MonkeyPatch) -> None:
    again = BY_EVENT["running", "tool_call_succeeded"]
    patch.setattr(calls, "BY_EVENT", {**BY_EVENT, ("succeeded", "tool_call_succeeded"): again})


def stay_in_hold(patch: pytest.MonkeyPatch) -> None:
    """A fault that breaks no invariant: only the model says that the session goes on."""
    patch.setattr(judge, "LET_GO", LET_GO._replace(target="Paused"))


def move_and_speak_again(machine: MigrationMachine) -> None:
    machine.go_on(3)
    machine.work()
    machine.work(who="other", off=-1)


def move_and_be_late(machine: MigrationMachine) -> None:
    machine.go_on(3)
    machine.work(who="other", off=-1)


def accept_wrongly(machine: MigrationMachine) -> None:
    machine.go_on(2)
    machine.accept(wrong="hash")


def succeed_twice(machine: MigrationMachine) -> None:
    machine.start_call()
    machine.end_call()
    machine.end_call()


def call_it_off(machine: MigrationMachine) -> None:
    machine.go_on(2)
    machine.abort()


FAULTS: list[tuple[str, Fault, Story]] = [
    (EPOCHS, accept_past_epochs, move_and_speak_again),
    (OWNERS, raise_no_epoch, lambda machine: machine.go_on(3)),
    (COMMITS, accept_past_epochs, move_and_be_late),
    (HASHES, accept_any_state, accept_wrongly),
    (AUDITS, audit_no_rejection, lambda machine: machine.work(off=1)),
    (SUCCESSES, succeed_again, succeed_twice),
]


@pytest.mark.interpreted
@pytest.mark.parametrize(("name", "fault", "story"), FAULTS)
def test_each_invariant_finds_a_fault_of_the_fold(
    monkeypatch: pytest.MonkeyPatch, name: str, fault: Fault, story: Story
) -> None:
    for is_faulty in (False, True):
        if is_faulty:
            fault(monkeypatch)
        machine = MigrationMachine()
        story(machine)
        assert bool(machine.account.found[name]) == is_faulty


def test_each_invariant_is_asked_by_the_machine_and_has_a_fault() -> None:
    assert {name for name, _, _ in FAULTS} == {*INVARIANTS}
    for name in INVARIANTS:
        machine = MigrationMachine()
        machine.account.found[name].append("it is broken")
        asked = [check for check in machine.invariants if not holds(check.function, machine)]
        assert len(asked) == 1, name


def holds(check: Callable[[MigrationMachine], None], machine: MigrationMachine) -> bool:
    try:
        check(machine)
    except AssertionError:
        return False
    return True


@pytest.mark.interpreted
def test_the_model_tells_what_breaks_no_invariant(monkeypatch: pytest.MonkeyPatch) -> None:
    stay_in_hold(monkeypatch)
    machine = MigrationMachine()
    call_it_off(machine)
    assert not any(machine.account.found.values())
    assert machine.find_differences() == ["Paused, not Active"]


@pytest.mark.interpreted
@pytest.mark.parametrize("fault", [*{fault: None for _, fault, _ in FAULTS}])
def test_chance_finds_each_fault_without_the_model(monkeypatch: pytest.MonkeyPatch, fault: Fault) -> None:
    fault(monkeypatch)
    monkeypatch.setattr(MigrationMachine, "find_differences", lambda machine: [])
    with pytest.raises(AssertionError, match="|".join(INVARIANTS)):
        run_machine(200, 30, phases=[Phase.generate])
