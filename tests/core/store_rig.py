"""A partition's fold on a store, and its changelog: what an owner does, without a broker."""

from collections.abc import Sequence
from typing import NamedTuple

from sessionary.schemas.codec import Decoder, encode_position
from sessionary.schemas.records import Position
from sessionary.schemas.rules import NEWEST_RULES
from sessionary.schemas.types import RuleSet
from sessionary.stream_processors.core.model import POSITION_KEY, LogRecord
from sessionary.stream_processors.core.partition import PartitionState
from sessionary.stream_processors.core.uncommitted_batch import UncommittedBatch
from sessionary.stream_processors.runtime.changelog import seal_with
from sessionary.stream_processors.runtime.job import processor_job
from sessionary.stream_processors.settings import ProcessorSettings
from sessionary.stream_processors.store.packed_rows import DUE_HEADER
from sessionary.stream_processors.store.stores import MemoryStore, SavedPosition, Store
from tests.auditor.signatures import SECRETS

SETTINGS = ProcessorSettings(partitions=1, signing_keys=SECRETS)
JOB = processor_job(SETTINGS)
_HEADER_BYTES = 10  # about what a header of a record takes beside its content


class ChangelogEntry(NamedTuple):
    """A changelog record; `due` is its header."""

    key: bytes
    value: bytes | None
    due: bytes | None


class StoreRig:
    """A fold of one partition by rules of any version; `written_bytes` counts transactions."""

    def __init__(self, store: Store | None = None, rules: RuleSet = NEWEST_RULES) -> None:
        self.store = MemoryStore(JOB.row_codec) if store is None else store
        self.state = self._new_state(self.store, Position(0, 0, 0, 0, 0, rules=rules))
        self.changelog: list[ChangelogEntry] = []
        self.written_bytes = self.transactions = 0

    def _new_state(self, store: Store, position: Position) -> PartitionState:
        state = JOB.new_state(0)
        state.rows = store.rows
        state.load_position(position)
        state.finish_loading(store.rows.due_rows())
        return state

    def fold_records(self, records: Sequence[LogRecord]) -> None:
        """Fold records in as many batches as they need."""
        waiting = list(reversed(records))
        while waiting:
            batch = self.state.begin()
            while waiting and batch.apply(waiting[-1]):
                waiting.pop()
            self.commit_batch(batch)

    def announce(self, rules: RuleSet) -> None:
        """Announce rules, in a batch without records."""
        batch = self.state.begin()
        batch.announce_rules(rules, "ops")
        self.commit_batch(batch)

    def commit_batch(self, batch: UncommittedBatch) -> None:
        """Write a batch's transaction, merge the batch and save the rows."""
        outcome = batch.finish()
        written = JOB.transaction(0, outcome, 0, self.store.stored_row)
        for topic, key, value, headers in written.records:
            self.written_bytes += len(key or b"") + len(value or b"")
            self.written_bytes += sum(len(content or b"") + _HEADER_BYTES for _, content in headers or ())
            if topic == SETTINGS.topics.changelog:
                due = dict(headers or ()).get(DUE_HEADER)
                assert key is not None
                assert not isinstance(due, str)
                self.changelog.append(ChangelogEntry(key, value, due))
        position = seal_with(self.store, None)(outcome.position, written.rows)
        encoded = encode_position(position)
        self.written_bytes += len(POSITION_KEY) + len(encoded)
        self.changelog.append(ChangelogEntry(POSITION_KEY, encoded, None))
        self.state.merge(batch)
        self.state.load_position(position)
        self.store.save_rows(written.rows, SavedPosition(position, len(self.changelog), 0.0))
        self.transactions += 1

    def recover_from(self, store: Store, changelog: Sequence[ChangelogEntry]) -> None:
        """Go on as a new owner that has this store, and reads these records."""
        saved = store.saved_position
        position = Position(0, 0, 0, 0, 0) if saved is None else saved.position
        store.rows.forget_unsaved()
        for key, value, due in changelog:
            if key == POSITION_KEY:
                found = Decoder().decode_record(value)
                assert isinstance(found, Position)
                position = found
            else:
                store.load_rows({key: None if value is None else JOB.row_codec.repack(value, due)})
        store.finish_loading()
        counted = (position.row_count, position.row_checksum)
        assert store.row_sum in (None, counted)
        assert counted in ((None, None), store.count_again())
        self.store, self.state = store, self._new_state(store, position)

    def compacted_changelog(self) -> list[ChangelogEntry]:
        """Return the last record of each key, but no deletions."""
        last = {entry.key: entry for entry in self.changelog}
        return [entry for entry in last.values() if entry.value is not None]
