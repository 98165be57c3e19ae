"""Schedules with two machines: every fault meets the rows of both."""

from collections import Counter
from collections.abc import Sequence

import pytest

from sessionary.stream_processors.core.machine import AnyMachine
from tests.simulation.adapter import MACHINES
from tests.simulation.runner import Failure, run_schedule
from tests.support.tally_machine import (
    MessageCounted,
    Tally,
    TallyFact,
    TallyMachine,
    TallyRow,
    encode_live,
)

SCHEDULES = 60
EXPECTED = {
    *("tally: closed", "tally: message refused", "tally: stub vanished"),
    *("recovery: of a Tally", "recovery: of a TallyStub", "recovery: of a SessionState"),
    *("recovery: whole changelog", "recovery: compacted changelog", "recovery: own store and the rest"),
    *("owner: fenced", "cluster: partition moved", "crash: processor begun", "crash: processor written"),
    *("transaction: aborted, folded again", "transaction: committed, answer lost", "batch: full by timers", "hole"),
}


def check_schedules(seeds: Sequence[int], machines: Sequence[AnyMachine]) -> Counter[str]:
    """Run schedules; return what occurred in them. Raises `Failure`."""
    seen: Counter[str] = Counter()
    for seed in seeds:
        result = run_schedule(seed, machines=machines)
        if result.found:
            raise Failure(seed, result.found, " --tally")
        seen += result.seen
    return seen


def test_every_schedule_passes_with_both_machines() -> None:
    seen = check_schedules(range(1, SCHEDULES + 1), (*MACHINES, TallyMachine()))
    assert EXPECTED - seen.keys() == set()
    assert seen["tally: closed"] > SCHEDULES


def test_without_the_second_machine_no_tally_is_seen() -> None:
    assert not {name for name in run_schedule(3).seen if "tally" in name.lower()}


class DoublingTally(TallyMachine):
    """Counts each message twice."""

    def evolve(self, row: TallyRow | None, fact: TallyFact) -> TallyRow | None:
        after = super().evolve(row, fact)
        if isinstance(after, Tally) and isinstance(fact, MessageCounted):
            return after._replace(messages=after.messages + 1)
        return after


class ImpureTally(TallyMachine):
    """Counts in itself: what a void batch counted stays."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: Counter[tuple[str, str]] = Counter()

    def evolve(self, row: TallyRow | None, fact: TallyFact) -> TallyRow | None:
        after = super().evolve(row, fact)
        if isinstance(after, Tally) and isinstance(fact, MessageCounted):
            session = (after.tenant_id, after.session_id)
            self.messages[session] = 1 if row is None else self.messages[session] + 1
            return after._replace(messages=self.messages[session])
        return after


def encode_one(row: Tally, rules: int) -> bytes:
    return encode_live(row._replace(messages=1), rules)


class ForgetfulTally(TallyMachine):
    """Loses its count in the changelog: a new owner begins with one message."""

    row_kinds = (TallyMachine.row_kinds[0]._replace(encode=encode_one), TallyMachine.row_kinds[1])


@pytest.mark.parametrize(
    ("broken", "complaint"),
    [(DoublingTally, r"in the open one, of \d+ messages"), (ImpureTally, "instead of"), (ForgetfulTally, "instead of")],
)
def test_a_broken_second_machine_is_found(broken: type[TallyMachine], complaint: str) -> None:
    with pytest.raises(Failure, match=complaint) as caught:
        check_schedules(range(1, 31), (*MACHINES, broken()))
    assert "--trace --tally" in str(caught.value)
