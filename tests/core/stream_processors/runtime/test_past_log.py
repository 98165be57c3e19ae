"""What a session's state at a point is folded from, if a part of it is gone."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from sessionary.schemas.rules import NEWEST_RULES
from sessionary.stream_processors.core.families import SESSION_JUDGE
from sessionary.stream_processors.core.model import SkippedOffsets
from sessionary.stream_processors.core.past import PastState, Point
from sessionary.stream_processors.errors import StateExpired
from sessionary.stream_processors.runtime import past_log
from sessionary.stream_processors.runtime.audit_log import AuditPart
from sessionary.stream_processors.runtime.decisions import SkippedRecords
from sessionary.stream_processors.runtime.past_log import PastReader
from sessionary.stream_processors.settings import ProcessorSettings
from tests.core.fold_rig import activation_bytes
from tests.core.past_rig import PastRig
from tests.support.event_factory import EventFactory

SETTINGS = ProcessorSettings(bootstrap_servers="127.0.0.1:1", partitions=1)


class KeptLogs:
    """The logs of a rig's partition, of which a batch of events cannot be read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rig, self.agent, self.damaged, self.probed = PastRig(), EventFactory(), range(0), 0
        self.rig.start(self.agent)
        self.asked: list[int | None] = []  # since when the trail was read
        self.records = 0  # of the trail that were read
        monkeypatch.setattr(past_log, "read_audit", self._read_audit)
        monkeypatch.setattr(past_log, "read_each", self._read_each)
        monkeypatch.setattr(past_log, "probe_log", self._probe)

    def _read_audit(
        self, _settings: object, _partition: int, _refuse: object, _keys: object, since_ms: int | None
    ) -> Iterator[AuditPart]:
        self.asked.append(since_ms)
        for record in self.rig.trail:
            if since_ms is None or record.appended_at // 1_000 >= since_ms:
                self.records += 1
                yield AuditPart(0, [record])

    def _probe(self, *_: object) -> Any:
        self.probed += 1
        return SimpleNamespace(start_offset=0)

    def _read_each(self, _settings: object, _partition: int, first: int, last: int) -> Iterator[SkippedRecords]:
        whole = [record for record in self.rig.log if first <= record.offset <= last]
        if self.damaged:
            yield SkippedRecords([each for each in whole if each.offset < self.damaged.start], self.damaged.start)
            yield SkippedRecords([], self.damaged.stop, is_past_unreadable=True)
        yield SkippedRecords([each for each in whole if each.offset >= self.damaged.stop], last + 1)

    def state(self) -> Any:
        return self.read().row

    def read(self, offset: int | None = None, begun_ms: int | None = None) -> PastState:
        reader = PastReader(SETTINGS, SESSION_JUDGE)
        end = self.rig.fold.position
        point = Point("offset", end.next_offset - 1 if offset is None else offset)
        return reader.state_at(self.agent.key, 0, point, end, begun_ms)


@pytest.fixture
def logs(monkeypatch: pytest.MonkeyPatch) -> KeptLogs:
    return KeptLogs(monkeypatch)


def test_without_the_events_of_a_damaged_batch_there_is_no_state(logs: KeptLogs) -> None:
    assert logs.rig.send(logs.agent, "state_updated") == "applied"
    assert logs.state() == logs.rig.row_of(logs.agent)
    logs.damaged = range(logs.rig.offset - 1, logs.rig.offset)
    with pytest.raises(StateExpired, match=f"before offset {logs.rig.offset}, cannot be read"):
        logs.state()


def test_a_damaged_batch_that_was_skipped_is_no_part_of_the_state(logs: KeptLogs) -> None:
    rig, first = logs.rig, logs.rig.offset
    batch = rig.fold.begin()
    batch.skip_offsets(SkippedOffsets("records_skipped", first + 2, rig.at, "damaged", "ops"))
    rig.trail += [audit for _, audit in batch.finish().records_on("audit")]
    rig.fold.merge(batch)
    rig.offset, logs.damaged = first + 2, range(first, first + 2)
    assert rig.send(logs.agent, "session_activity") == "applied"
    assert logs.state() == rig.row_of(logs.agent)


def test_without_the_begin_of_the_trail_the_log_is_not_asked(logs: KeptLogs) -> None:
    logs.rig.trail.clear()
    with pytest.raises(StateExpired, match="first event"):
        logs.state()
    assert logs.probed == 0


OTHER_RULES = NEWEST_RULES._replace(finished_run_days=3)


def decide(rig: PastRig) -> None:
    """Let other rules begin."""
    rig.announce(OTHER_RULES)
    rig.trail += rig.audits()
    rig.append(None, activation_bytes(OTHER_RULES))


def test_the_trail_is_read_from_the_sessions_begin_on(logs: KeptLogs) -> None:
    rig, logs.agent = logs.rig, EventFactory("mine")
    decide(rig)
    rig.at += 59_000
    rig.start(logs.agent)
    begun_ms, before = rig.row_of(logs.agent).created_at, logs.asked.copy()
    assert rig.send(logs.agent, "session_paused") == "applied"
    whole = logs.read()
    assert (before, logs.asked, logs.records) == ([], [None], len(rig.trail))
    assert whole.check.verdict == "equal"
    logs.records = 0
    assert logs.read(begun_ms=begun_ms) == whole
    assert (logs.asked, logs.records) == ([None, begun_ms - 60_000], len(rig.trail))
    rig.at += 600_000
    rig.start(later := EventFactory("later"))
    logs.agent, logs.records = later, 0
    assert logs.read(begun_ms=rig.row_of(later).created_at) == logs.read()
    assert logs.records == 2 + len(rig.trail)


def test_after_a_decision_the_whole_trail_is_read(logs: KeptLogs) -> None:
    rig, begun_ms = logs.rig, logs.rig.row_of(logs.agent).created_at
    decide(rig)
    assert rig.send(logs.agent, "session_paused") == "applied"
    assert logs.read(begun_ms=begun_ms) == logs.read()
    assert logs.asked == [begun_ms - 60_000, None, None]


def test_a_begin_that_is_stamped_elsewhere_is_found_in_the_whole_trail(logs: KeptLogs) -> None:
    assert logs.read(begun_ms=logs.rig.at + 600_000) == logs.read()
    assert logs.asked[1:] == [None, None]
