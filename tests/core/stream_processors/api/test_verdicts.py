"""The verdict on a record: `applied` is said of no other record."""

from collections.abc import Sequence

import pytest

from sessionary.schemas.codec import Decoder, encode_record
from sessionary.schemas.limits import NAME_CHARACTERS_MAX
from sessionary.schemas.records import SessionState
from sessionary.schemas.types import RefusalReason
from sessionary.stream_processors.api.verdicts import verdict_document
from sessionary.stream_processors.core.recent_outcomes import EVENT_ID_KEPT, RecentOutcomes
from sessionary.stream_processors.core.sequencing import OFFSETS_KEPT
from sessionary.stream_processors.core.session.effects import REFUSALS_KEPT
from tests.core.oracle_rig import OracleRig
from tests.support.event_factory import EventFactory


class VerdictRig(OracleRig):
    """A fold whose outcomes are kept, as an owner keeps them, for one session."""

    def __init__(self) -> None:
        super().__init__()
        self.agent, self.recent = EventFactory(), RecentOutcomes()
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
        return self._answer(RecentOutcomes(), row, offset)

    def _answer(self, recent: RecentOutcomes, row: SessionState, offset: int) -> tuple[str, str | None]:
        document = verdict_document(recent, row, self.agent.key.encoded(), 3, offset)
        assert (document["partition"], document["offset"]) == (3, offset)
        return document["outcome"], document["reason"]


APPLIED = ("applied", None)
NOT_KEPT = ("not_kept", None)
REFUSED: tuple[str, RefusalReason] = ("refused", "illegal_transition")


def test_an_unreadable_event_is_refused_though_the_row_does_not_know_it() -> None:
    rig = VerdictRig()
    assert rig.verdict(rig.deliver(b"\xc3\x01" + b"\x07" * 8 + b"newer schema")) == ("refused", "unknown_schema")
    cut = rig.agent.event_bytes("session_activity")[:-3]
    assert rig.verdict(rig.deliver(cut)) == ("refused", "undecodable")


def test_a_repetition_has_the_verdict_of_the_original() -> None:
    rig = VerdictRig()
    refused, applied = rig.agent.event_bytes("session_resumed"), rig.agent.event_bytes("session_activity")
    assert [rig.verdict(rig.deliver(value)) for value in (refused, refused)] == [REFUSED] * 2
    assert [rig.verdict(rig.deliver(value)) for value in (applied, applied)] == [("applied", None)] * 2


def test_an_event_id_of_any_length_costs_no_memory_and_gives_no_false_verdict() -> None:
    rig = VerdictRig()
    for event_type, length, verdict in (
        ("session_activity", EVENT_ID_KEPT, APPLIED),
        ("session_activity", EVENT_ID_KEPT + 1, APPLIED),
        ("session_resumed", EVENT_ID_KEPT + 1, REFUSED),
        ("session_activity", NAME_CHARACTERS_MAX, APPLIED),
    ):
        value = rig.agent.event_bytes(event_type, {"event_id": "x" * length})
        is_kept = length == EVENT_ID_KEPT
        assert rig.verdict(rig.deliver(value)) == verdict
        assert rig.verdict(rig.deliver(value)) == (verdict if is_kept else NOT_KEPT)
        assert list(rig.outcomes[-1].judged.duplicates.values()) == ["x" * length if is_kept else ""]
    too_long = rig.agent.event_bytes("session_activity", {"event_id": "x" * (NAME_CHARACTERS_MAX + 1)})
    assert [rig.verdict(rig.deliver(too_long)) for _ in range(2)] == [("refused", "invalid_value")] * 2


def test_a_repetition_without_an_id_has_not_the_verdict_of_an_unreadable_event() -> None:
    rig = VerdictRig()
    value = rig.agent.event_bytes("session_activity", {"event_id": ""})
    rig.deliver(b"unreadable")
    assert [rig.verdict(rig.deliver(value)) for _ in range(2)] == [APPLIED, NOT_KEPT]


def test_a_refusal_stays_one_after_many_others() -> None:
    rig = VerdictRig()
    value = rig.agent.event_bytes("session_resumed")
    first = rig.deliver(value)
    for _ in range(REFUSALS_KEPT):
        rig.send(rig.agent, "session_resumed")
    assert rig.verdict(first) == REFUSED
    assert rig.verdict(rig.deliver(value)) == ("not_kept", None)  # the row has forgotten the original


def test_a_worker_that_did_not_judge_a_record_says_what_the_row_says() -> None:
    rig = VerdictRig()
    refused = rig.deliver(rig.agent.event_bytes("session_resumed"))
    applied = rig.deliver(rig.agent.event_bytes("session_activity"))
    assert rig.verdict_after_restart(refused) == REFUSED
    assert rig.verdict_after_restart(applied) == rig.verdict(applied) == APPLIED


def test_the_row_says_what_became_of_a_sessions_last_events() -> None:
    rig = VerdictRig()
    agent, other = rig.agent, EventFactory("another")
    rig.start(other)
    unreadable = rig.deliver(b"\xc3\x01" + b"\x07" * 8 + b"newer schema")
    cut = rig.deliver(agent.event_bytes("session_activity")[:-3])
    foreign = rig.deliver(EventFactory("another").event_bytes("session_activity"))
    refused = rig.deliver(agent.event_bytes("session_resumed"))
    applied = rig.deliver(agent.event_bytes("session_activity"))
    rig.tick()
    assert [rig.verdict_after_restart(offset) for offset in (0, 1, 2, 3, applied)] == [APPLIED] * 5
    assert rig.verdict_after_restart(unreadable) == ("refused", "unknown_schema")
    assert rig.verdict_after_restart(cut) == ("refused", "undecodable")
    assert rig.verdict_after_restart(foreign) == ("refused", "key_mismatch")
    assert rig.verdict_after_restart(refused) == REFUSED
    others = [offset for offset, record in enumerate(rig.log) if record.key != agent.key.encoded()]
    assert len(others) == 5
    assert {rig.verdict_after_restart(offset) for offset in (*others, len(rig.log))} == {NOT_KEPT}


@pytest.mark.parametrize("event_type", ["session_resumed", "session_activity"])
def test_a_row_has_no_verdict_on_a_repetition(event_type: str) -> None:
    rig = VerdictRig()
    value = rig.agent.event_bytes(event_type)
    original, repetition = rig.deliver(value), rig.deliver(value)
    verdict = REFUSED if event_type == "session_resumed" else APPLIED
    assert rig.verdict_after_restart(original) == rig.verdict(repetition) == verdict
    assert rig.verdict_after_restart(repetition) == NOT_KEPT


def test_a_row_that_has_forgotten_a_refusal_says_applied_of_no_event_before_the_next() -> None:
    rig, second = VerdictRig(), EventFactory(producer="q")
    second.key = rig.agent.key
    forgotten = rig.deliver(rig.agent.event_bytes("session_resumed"))
    applied = rig.deliver(rig.agent.event_bytes("session_activity"))
    refusals = [rig.deliver(second.event_bytes("session_resumed")) for _ in range(REFUSALS_KEPT - 1)]
    assert (rig.verdict_after_restart(forgotten), rig.verdict_after_restart(applied)) == (REFUSED, APPLIED)
    rig.deliver(second.event_bytes("session_resumed"))
    assert [rig.verdict_after_restart(offset) for offset in (forgotten, applied)] == [NOT_KEPT] * 2
    later = rig.deliver(rig.agent.event_bytes("session_activity"))
    assert [rig.verdict_after_restart(offset) for offset in (*refusals, later)] == [REFUSED] * len(refusals) + [APPLIED]


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
