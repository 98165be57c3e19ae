"""What a session's state at a point is folded from, if a part of it is gone."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from sessionary.stream_processors.core.families import SESSION_JUDGE
from sessionary.stream_processors.core.model import SkippedOffsets
from sessionary.stream_processors.core.past import Point
from sessionary.stream_processors.errors import StateExpired
from sessionary.stream_processors.runtime import past_log
from sessionary.stream_processors.runtime.audit_log import AuditPart
from sessionary.stream_processors.runtime.decisions import SkippedRecords
from sessionary.stream_processors.runtime.past_log import PastReader
from sessionary.stream_processors.settings import ProcessorSettings
from tests.core.past_rig import PastRig
from tests.support.event_factory import EventFactory

SETTINGS = ProcessorSettings(bootstrap_servers="127.0.0.1:1")


class KeptLogs:
    """The logs of a rig's partition, of which a batch of events cannot be read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rig, self.agent, self.damaged, self.probed = PastRig(), EventFactory(), range(0), 0
        self.rig.start(self.agent)
        monkeypatch.setattr(past_log, "read_audit", lambda *_: iter([AuditPart(0, self.rig.trail)]))
        monkeypatch.setattr(past_log, "read_each", self._read_each)
        monkeypatch.setattr(past_log, "probe_log", self._probe)

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
        reader = PastReader(SETTINGS, SESSION_JUDGE)
        end = self.rig.fold.position
        return reader.state_at(self.agent.key, 0, Point("offset", end.next_offset - 1), end).row


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
