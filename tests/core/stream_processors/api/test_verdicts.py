"""The verdict on a record: `applied` is said of no other record."""

from collections.abc import Sequence

from sessionary.schemas.types import RefusalReason
from sessionary.stream_processors.api.verdicts import verdict_document
from sessionary.stream_processors.core.recent_outcomes import RecentOutcomes
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

    def verdict(self, offset: int, recent: RecentOutcomes | None = None) -> tuple[str, str | None]:
        key = self.agent.key.encoded()
        document = verdict_document(recent or self.recent, self.row_of(self.agent), key, 3, offset)
        assert (document["partition"], document["offset"]) == (3, offset)
        return document["outcome"], document["reason"]


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
    for event_type in ("session_resumed", "session_activity"):
        value = rig.agent.event_bytes(event_type, {"event_id": "x" * 1_000})
        first, second = rig.verdict(rig.deliver(value)), rig.verdict(rig.deliver(value))
        assert (first, second) == (
            REFUSED if event_type == "session_resumed" else ("applied", None),
            ("not_kept", None),
        )
    assert set(rig.outcomes[-1].judged.duplicates.values()) == {""}


def test_a_refusal_stays_one_after_many_others() -> None:
    rig = VerdictRig()
    value = rig.agent.event_bytes("session_resumed")
    first = rig.deliver(value)
    for _ in range(REFUSALS_KEPT):
        rig.send(rig.agent, "session_resumed")
    assert rig.verdict(first) == REFUSED
    assert rig.verdict(rig.deliver(value)) == ("not_kept", None)  # the row has forgotten the original


def test_a_worker_that_did_not_judge_a_record_says_what_the_row_says() -> None:
    rig, new_worker = VerdictRig(), RecentOutcomes()
    refused = rig.deliver(rig.agent.event_bytes("session_resumed"))
    applied = rig.deliver(rig.agent.event_bytes("session_activity"))
    assert rig.verdict(refused, new_worker) == REFUSED
    assert rig.verdict(applied, new_worker) == ("not_kept", None)
    assert rig.verdict(applied) == ("applied", None)


def test_another_sessions_record_has_no_verdict_here() -> None:
    rig, other = VerdictRig(), EventFactory("another")
    rig.start(other)
    assert rig.verdict(len(rig.log) - 1) == ("not_kept", None)
