"""Schedules with a family of rows that only tests have: every fault meets its rows too."""

from collections import Counter
from collections.abc import Sequence

import pytest

from sessionary.schemas.codec import Event
from sessionary.schemas.events import MessageAppended
from sessionary.schemas.records import SessionState
from sessionary.stream_processors.core.children.message import MESSAGES
from sessionary.stream_processors.core.families import CHILDREN
from sessionary.stream_processors.core.family import ChildFamily, Judged, SessionArrival
from sessionary.stream_processors.core.judge import Judge, Objection
from sessionary.stream_processors.core.session.judge import SessionJudge
from tests.simulation.runner import Failure, run_schedule
from tests.support.tally_family import Tally, TallyRows, encode_live, judge_tally, tally_family, tally_judge

SCHEDULES = 60
EXPECTED = {
    *("recovery: of a Tally", "recovery: of a ClosedTally", "recovery: of a SessionState"),
    *("recovery: whole changelog", "recovery: compacted changelog", "recovery: own store and the rest"),
    *("owner: fenced", "cluster: partition moved", "crash: processor begun", "crash: processor written"),
    *(
        "transaction: aborted, folded again",
        "transaction: committed, answer lost",
        "batch: full by timers",
        "log: outage",
    ),
}


def check_schedules(seeds: Sequence[int], judge: Judge) -> Counter[str]:
    """Run schedules; return what occurred in them. Raises `Failure`."""
    seen: Counter[str] = Counter()
    for seed in seeds:
        result = run_schedule(seed, judge=judge)
        if result.found:
            raise Failure(seed, result.found, " --tally")
        seen += result.seen
    return seen


def judge_with(family: ChildFamily) -> SessionJudge:
    return SessionJudge([*(each for each in CHILDREN if each is not MESSAGES), family])


def test_every_schedule_passes_with_a_new_family() -> None:
    seen = check_schedules(range(1, SCHEDULES + 1), tally_judge())
    assert EXPECTED - seen.keys() == set()


def test_without_the_new_family_none_of_its_rows_is_seen() -> None:
    assert not {name for name in run_schedule(3).seen if "tally" in name.lower()}


def impure_family() -> ChildFamily:
    """Return a family that counts in itself: what a void batch counted stays."""
    messages: Counter[tuple[str, str]] = Counter()

    def judge(session: SessionState, event: Event, arrival: SessionArrival) -> Judged | Objection:
        judged = judge_tally(session, event, arrival)
        if isinstance(judged, Objection):
            return judged
        key = (session.tenant_id, session.session_id)
        messages[key] = 1 if arrival.child is None else messages[key] + 1
        return Judged(judged.row._replace(messages=messages[key]))

    return tally_family()._replace(judge=judge)


class ForgetfulRows(TallyRows):
    """Rows that lose their count in the changelog: a new owner begins with one message."""

    def __init__(self) -> None:
        super().__init__()
        live, closed = self.kinds
        self.kinds = (live._replace(encode=encode_one), closed)


def encode_one(row: Tally, rules: int) -> bytes:
    return encode_live(row._replace(messages=1), rules)


@pytest.mark.parametrize("broken", [impure_family(), tally_family()._replace(rows=ForgetfulRows())])
def test_a_broken_family_is_found(broken: ChildFamily) -> None:
    assert broken.payloads == (MessageAppended,)
    with pytest.raises(Failure, match="instead of") as caught:
        check_schedules(range(1, 31), judge_with(broken))
    assert "--trace --tally" in str(caught.value)
