"""What a rebuild of a partition's rows writes, by what its logs say; without a broker."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest

from sessionary.schemas.codec import Decoder, encode_record
from sessionary.schemas.records import AuditRecord, BatchRecord, Position
from sessionary.stream_processors.core.model import LogRecord, RebuildMode, SkippedOffsets
from sessionary.stream_processors.core.partition import PartitionState
from sessionary.stream_processors.errors import Halted, Lost, RebuildRefused
from sessionary.stream_processors.runtime import rebuild
from sessionary.stream_processors.runtime.changelog import UNFINISHED
from sessionary.stream_processors.runtime.decisions import SkippedRecords
from sessionary.stream_processors.runtime.log_identity import TopicIds
from sessionary.stream_processors.runtime.log_probe import FoldProgress, LogProbe, RecordStamp
from sessionary.stream_processors.runtime.rebuild import RebuildPlan, require_rebuildable
from sessionary.stream_processors.store.packed_rows import CONTENT_SUFFIX
from sessionary.stream_processors.store.stores import MemoryStore
from tests.core.oracle_rig import START_MS
from tests.core.store_rig import JOB, SETTINGS, StoreRig
from tests.support.event_factory import TICK, EventFactory, snapshot

END = 8
IDS = TopicIds("events-1", "changelog-1")


class Rebuilt:
    """A partition of two sessions, whose third record was skipped and whose fifth failed.

    `rig` is as it was folded; its changelog lost all rows, or has one that is too many.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[LogRecord] = []
        for number in range(END):
            agent = EventFactory(f"s{number % 2}", producer=f"p{number}")
            created = agent.event_bytes("session_created", snapshot=snapshot("first", f'{{"n":"{str(number) * 50}"}}'))
            key, value = (None, TICK) if number == 6 else (agent.key.encoded(), created)
            self.log.append(LogRecord(number, START_MS + 1_000 * number, key, value))
        self.audit: list[AuditRecord] = []
        self.rig = self.fold()
        self.position = IDS.complete(self.rig.state.position)
        batches = [BatchRecord(0, number, 0, END - 1, END, 0, 0, 0, 0, 0, 0, 0, "w", 2) for number in (1, 9)]
        self.progress = FoldProgress(batches[0], None, 0)
        self.found = MemoryStore(JOB.row_codec)
        self.log_range = LogProbe(0, END, None, RecordStamp(START_MS, 3))
        self.unreadable: list[bytes] = []
        self.audit_start = 0
        self.read: list[tuple[int, int]] = []
        monkeypatch.setattr(rebuild, "read_as_is", self._read_changelog)
        monkeypatch.setattr(rebuild, "find_progress", lambda *_: self.progress)
        monkeypatch.setattr(rebuild, "probe_log", lambda *_: self.log_range)
        monkeypatch.setattr(rebuild, "read_each", self._read_each)
        monkeypatch.setattr(rebuild._Planning, "_list_audit", lambda *_, **__: iter(self.audit))

    def fold(self) -> StoreRig:
        """Fold the log as an owner does that skips a record, in two batches."""
        rig = StoreRig()
        self._fold(rig, self.log[:3])
        batch = rig.state.begin()
        batch.skip_offsets(SkippedOffsets("records_skipped", 4, START_MS + 3_000, "why", "alice", self.log[3:4]))
        self._commit(rig, batch)
        self._fold(rig, self.log[4:5])
        batch = rig.state.begin()
        assert batch.apply(self.log[5], "ValueError at rules.py:1, in judge")
        self._commit(rig, batch)
        self._fold(rig, self.log[6:])
        return rig

    def _fold(self, rig: StoreRig, records: Sequence[LogRecord]) -> None:
        batch = rig.state.begin()
        assert all(map(batch.apply, records))
        self._commit(rig, batch)

    def _commit(self, rig: StoreRig, batch: Any) -> None:
        left = [encode_record(record) for _, record in batch.finish().records_on("audit")]
        self.audit += [cast(AuditRecord, Decoder().decode_record(record)) for record in left]
        rig.commit_batch(batch)

    def _read_changelog(self, _settings: object, state: PartitionState, store: MemoryStore, *_: object) -> list[bytes]:
        store.load_rows(dict(self.found.stored_rows()))
        state.load_position(self.position)
        return self.unreadable

    def _read_each(self, _settings: object, _partition: int, first: int, last: int) -> Iterator[SkippedRecords]:
        self.read.append((first, last))
        if records := [record for record in self.log if first <= record.offset <= last]:
            yield SkippedRecords(records, last + 1)

    def plan(self, mode: RebuildMode = "refold", ids: TopicIds = IDS) -> RebuildPlan:
        return rebuild._Planning(SETTINGS, JOB, 0, ids, lambda: True).plan(mode, 0)


def stored(rig: StoreRig) -> dict[bytes, bytes | None]:
    assert isinstance(rig.store, MemoryStore)
    return dict(rig.store.stored_rows())


@pytest.fixture
def rebuilt(monkeypatch: pytest.MonkeyPatch) -> Rebuilt:
    return Rebuilt(monkeypatch)


def written(plan: RebuildPlan) -> MemoryStore:
    """Return the rows of the changelog after the plan's transactions."""
    (rows,) = plan.cut_rows(JOB.row_codec)
    plan.found.load_rows(
        {
            key: packed and packed.stored
            for key, packed in JOB.row_codec.pack_changes(rows, 2, plan.stored_row).items()  # type: ignore[attr-defined]
        }
    )
    return plan.found


def test_rows_are_those_that_were_folded_with_all_decisions_and_failures(
    rebuilt: Rebuilt, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(rebuild, "_REPORT_EACH_S", 0.0)
    known = stored(rebuilt.rig)
    first, *_ = known
    rebuilt.found.load_rows({**known, first: None, b"acme:foreign": known[first]})
    plan = rebuilt.plan()
    assert (plan.added, plan.changed, plan.removed) == ([first], [], [b"acme:foreign"])
    assert written(plan).count_again() == rebuilt.rig.store.count_again()
    assert rebuilt.read == [(0, 2), (4, 7)], "the skipped record is not read"
    assert "its events are folded again, up to offset 3" in caplog.text
    expected = rebuilt.rig.state.position
    assert plan.position == expected._replace(row_count=None, row_checksum=None)
    assert plan.leader_epoch == 3


def test_a_fold_ends_once_no_caller_wants_it(rebuilt: Rebuilt) -> None:
    planning = rebuild._Planning(SETTINGS, JOB, 0, IDS, lambda: not rebuilt.read)
    with pytest.raises(Lost, match="no longer wanted"):
        planning.plan("refold", 0)
    assert len(rebuilt.read) == 1


def test_a_fold_ends_where_the_last_batch_did(rebuilt: Rebuilt) -> None:
    last = BatchRecord(0, 9, 6, 6, 0, 0, 0, 0, 0, 1, 0, 0, "w", 2)
    rebuilt.progress = rebuilt.progress._replace(last_batch=last)
    rebuilt.audit = [record for record in rebuilt.audit if record.source_offset < 7]
    rebuilt.position = IDS.complete(Position(0, 0, 0, 0, 0))
    plan = rebuilt.plan()
    assert (plan.position.next_offset, plan.position.batch_number) == (7, 9)
    assert (plan.former.next_offset, plan.audited_beyond) == (0, 0)


@pytest.mark.parametrize(
    ("batch", "end"),
    [
        (None, (40, 7)),
        ((6, 10, 30, 5), (40, 7)),
        ((8, 40, 44, 5), (45, 8)),
        ((8, 40, 40, 1), (41, 8)),
        ((8, 40, 40, 0), (40, 8)),  # a decision, or timers of the next record
    ],
)
def test_the_end_of_a_fold_is_that_of_its_last_batch(
    batch: tuple[int, int, int, int] | None, end: tuple[int, int]
) -> None:
    last = None
    if batch is not None:
        number, first, final, applied = batch
        last = BatchRecord(0, number, first, final, applied, 0, 0, 0, 0, 0, 0, 0, "w", 2)
    assert rebuild._find_end(Position(40, 5_000, 0, 7, 0), FoldProgress(None, last, 90)) == end


def test_a_truncation_that_was_accepted_last_ended_where_it_began() -> None:
    """Its three records were rejected at offsets below; the next record is still to be judged."""
    last = BatchRecord(0, 8, 40, 40, 0, 0, 3, 1, 0, 0, 0, 0, "w", 2)
    assert rebuild._find_end(Position(40, 5_000, 0, 7, 0), FoldProgress(None, last, 90)) == (40, 8)


def test_without_position_and_batches_the_group_s_offset_says_where_a_fold_ended() -> None:
    assert rebuild._find_end(Position(0, 0, 0, 0, 0), FoldProgress(None, None, 90)) == (90, 0)


def refusals(rebuilt: Rebuilt, case: str) -> None:
    skip = next(record for record in rebuilt.audit if record.kind == "decision")
    if case == "deleted":
        rebuilt.log_range = LogProbe(2, END)
    elif case == "cut":
        rebuilt.log_range = LogProbe(0, END - 1)
    elif case == "decided":
        rebuilt.audit.append(skip._replace(event_type="clock_repaired"))
    elif case == "copied":
        rebuilt.audit.append(skip._replace(event_type="topics_accepted"))
    elif case == "other keys":
        rebuilt.audit[-1] = rebuilt.audit[-1]._replace(reason_code="bad_signature")
    elif case == "other events":
        del rebuilt.audit[0]
    elif case == "between timers":
        rebuilt.audit.append(skip._replace(kind="transition", source_offset=END, batch_number=1))
    elif case == "rules":
        rebuilt.progress = rebuilt.progress._replace(
            first_batch=BatchRecord(0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, "w", 1)
        )
    elif case == "truncated":
        rebuilt.position = rebuilt.position._replace(log_truncated="the log ends at 3")


@pytest.mark.parametrize(
    ("case", "part"),
    [
        ("deleted", "its log begins at offset 2: the events before were deleted"),
        ("cut", "its log ends at offset 7, but the events below 8 were folded"),
        ("decided", r"by a decision at offset 3 \(clock_repaired\)"),
        ("copied", r"by a decision at offset 3 \(topics_accepted\)"),
        ("other keys", "judged with other signing keys"),
        ("other events", "does not leave the records that sessionary.audit has, from about offset 0 on"),
        ("between timers", "ended between the timers of offset 8"),
        ("rules", "judged by rules 1, which this worker does not know"),
        ("truncated", "its log lost events that were folded"),
    ],
)
def test_a_fold_that_would_give_other_rows_is_refused_by_name(rebuilt: Rebuilt, case: str, part: str) -> None:
    refusals(rebuilt, case)
    with pytest.raises(RebuildRefused, match=part):
        rebuilt.plan()


def test_records_that_a_torn_transaction_left_do_not_hide_or_feign_another_verdict(rebuilt: Rebuilt) -> None:
    rebuilt.audit += rebuilt.audit[-1:]
    assert rebuilt.plan().position.next_offset == END
    verdicts, other = rebuild._Verdicts(), rebuild._Verdicts()
    first = rebuilt.audit[0]
    for place, reason in ((5, "one"), (5, "two"), (7_000, "one"), (9_000, "one")):
        verdicts.add(first._replace(source_offset=place, reason_code="one"))
        other.add(first._replace(source_offset=place, reason_code=reason if place == 5 else "three"))
    assert other.find_other(verdicts) == 7_000


def test_another_events_topic_is_not_folded(rebuilt: Rebuilt) -> None:
    with pytest.raises(RebuildRefused, match=r"was made again.* use --accept-topics, else --accept-rows"):
        rebuilt.plan(ids=IDS._replace(events="events-2"))


def test_rows_that_are_accepted_stay_but_for_those_that_cannot_be_read(rebuilt: Rebuilt) -> None:
    rebuilt.found.load_rows(stored(rebuilt.rig))
    rebuilt.unreadable = [b"acme:torn"]
    plan = rebuilt.plan("accept_rows", IDS._replace(changelog="changelog-2"))
    assert (*plan.added, *plan.changed, *plan.removed) == (b"acme:torn",)
    assert plan.position.next_offset == END
    grace_ms = plan.position.clock_ms + SETTINGS.outage_grace_ms
    assert plan.position == rebuilt.position._replace(outage_grace_until_ms=grace_ms)
    sealed = plan.seal(is_last=True)(plan.position, {})
    assert (sealed.row_count, sealed.row_checksum) == rebuilt.rig.store.count_again()
    assert sealed.changelog_topic_id == "changelog-2"
    assert plan.seal(is_last=False)(plan.position, {}).row_count == UNFINISHED


@pytest.mark.parametrize("mode", ["accept_rows", "refold"])
def test_a_content_that_cannot_be_read_does_not_stay_in_the_changelog(rebuilt: Rebuilt, mode: RebuildMode) -> None:
    """It would halt the partition again, after each rebuild."""
    rebuilt.found.load_rows(stored(rebuilt.rig))
    rebuilt.unreadable = [b"acme:gone" + CONTENT_SUFFIX]
    plan = rebuilt.plan(mode)
    (rows,) = plan.cut_rows(JOB.row_codec)
    packed = JOB.row_codec.pack_changes(rows, 2, plan.stored_row)  # type: ignore[attr-defined]
    assert packed == {b"acme:gone": None, b"acme:gone" + CONTENT_SUFFIX: None}


def test_another_log_is_recognised_by_its_stamps_and_not_by_epochs_that_begin_again(rebuilt: Rebuilt) -> None:
    rebuilt.position = rebuilt.position._replace(leader_epoch=3)
    assert rebuilt.plan("accept_rows").leader_epoch == 3
    plan = rebuilt.plan("accept_rows", IDS._replace(events="events-2"))
    sealed = plan.seal(is_last=True)(plan.position, {})
    assert (sealed.leader_epoch, sealed.events_topic_id) == (None, "events-2")
    later = LogProbe(0, END + 90, None, RecordStamp(sealed.clock_ms + 1, 0))
    fault = later.find_truncation(0, sealed)
    assert fault is not None
    assert fault.reason == "log_truncated"


@pytest.mark.parametrize(("later_ms", "epoch", "is_cut"), [(1_001, 3, True), (1_001, 2, False), (999, 3, False)])
def test_a_loss_of_events_with_that_of_the_changelog_is_not_hidden(
    rebuilt: Rebuilt, later_ms: int, epoch: int, is_cut: bool
) -> None:
    """As by an unclean election. Agents send on, so the log reaches the fold's end again."""
    begun_ms, position = START_MS + 8_000, rebuilt.position
    last = BatchRecord(0, 9, 6, END - 1, 2, 0, 0, 0, 0, 0, begun_ms * 1_000, 0, "w", 2)
    rebuilt.progress = rebuilt.progress._replace(last_batch=last)
    rebuilt.position = position._replace(next_offset=6, clock_ms=START_MS + 5_000, batch_number=2, leader_epoch=2)
    rebuilt.log_range = LogProbe(0, END, None, RecordStamp(begun_ms + later_ms, epoch))
    accepted = rebuilt.plan("accept_rows")
    sealed = accepted.seal(is_last=True)(accepted.position, {})
    assert (rebuilt.log_range.find_truncation(0, sealed) is not None) == is_cut
    with pytest.raises(RebuildRefused, match="the log lost events, too") if is_cut else contextlib.nullcontext():
        rebuilt.plan()


def test_an_audit_record_of_a_torn_transaction_is_counted(rebuilt: Rebuilt) -> None:
    torn = rebuilt.audit[0]._replace(kind="transition", source_offset=END, batch_number=99)
    rebuilt.audit.append(torn)
    assert rebuilt.plan().audited_beyond == 1


def test_copies_are_accepted_if_the_rows_are_whole_and_events_are_where_they_were(rebuilt: Rebuilt) -> None:
    moved = TopicIds("events-2", "changelog-2")
    rows, sums = stored(rebuilt.rig), rebuilt.rig.store.count_again()
    rebuilt.position = rebuilt.position._replace(row_count=sums.rows, row_checksum=sums.checksum)
    with pytest.raises(RebuildRefused, match="has not the rows that its last position counts"):
        rebuilt.plan("accept_topics", moved)
    rebuilt.found.load_rows(rows)
    log = [*rebuilt.log]
    plan_of = _reading(rebuilt, log)
    assert plan_of("accept_topics", moved).position == rebuilt.position
    log.append(log.pop(0))
    log[:] = [record._replace(offset=offset) for offset, record in enumerate(log)]
    with pytest.raises(RebuildRefused, match="Its offsets must be the same"):
        plan_of("accept_topics", moved)
    rebuilt.log_range = LogProbe(0, END - 1)
    with pytest.raises(RebuildRefused, match="holds 0 to 7: its offsets are not those of the former topic"):
        plan_of("accept_topics", moved)


def test_a_copy_without_a_live_session_is_recognised_by_its_audit_trail(rebuilt: Rebuilt) -> None:
    """As most partitions of a pipeline that was moved at night."""
    moved = TopicIds("events-2", "changelog-2")
    rebuilt.position = rebuilt.position._replace(row_count=0, row_checksum=0)
    assert _reading(rebuilt, rebuilt.log)("accept_topics", moved).position == rebuilt.position
    other = [record._replace(offset=(record.offset + 1) % END) for record in rebuilt.log]
    with pytest.raises(RebuildRefused, match="Its offsets must be the same"):
        _reading(rebuilt, other)("accept_topics", moved)
    rebuilt.audit.clear()
    with pytest.raises(RebuildRefused, match=r"neither a live session nor sessionary\.audit names an event"):
        _reading(rebuilt, rebuilt.log)("accept_topics", moved)


def _reading(rebuilt: Rebuilt, log: Sequence[LogRecord]) -> Any:
    def read(_settings: object, _partition: int, first: int, last: int) -> SkippedRecords:
        return SkippedRecords([record for record in log if first <= record.offset <= last], last + 1)

    def plan(mode: RebuildMode, ids: TopicIds) -> RebuildPlan:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(rebuild, "read_records", read)
            return rebuilt.plan(mode, ids)

    return plan


@pytest.mark.parametrize(
    ("reason", "mode", "part"),
    [
        ("log_gap", "refold", "see: sessionary partition accept-gap"),
        ("log_truncated", "accept_rows", "see: sessionary partition accept-truncation"),
        ("clock_ahead", "refold", "see: sessionary partition repair-clock"),
        ("judge_failed", "refold", "see: sessionary partition skip"),
        ("transaction_open", "accept_rows", "see: sessionary partition retry"),
        ("position_lost", "accept_topics", "only a topic_replaced ends by accepting the topics"),
    ],
)
def test_a_halt_with_another_way_out_names_it(reason: Any, mode: RebuildMode, part: str) -> None:
    with pytest.raises(RebuildRefused, match=part):
        require_rebuildable(3, Halted(reason, "why"), mode)
