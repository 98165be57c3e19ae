"""How a changelog is read, without a broker."""

import os
import platform
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message, TopicPartition

from sessionary.stream_processors.core.model import POSITION_KEY, LogRecord
from sessionary.stream_processors.core.partition import PartitionState
from sessionary.stream_processors.errors import Halted, Lost
from sessionary.stream_processors.runtime import changelog
from sessionary.stream_processors.runtime.changelog import (
    PREFETCH_KIB,
    RecoveryProgress,
    give_back_memory,
    reader_of,
    recover,
)
from sessionary.stream_processors.runtime.job import processor_job
from sessionary.stream_processors.runtime.worker_context import RECOVERIES_MAX
from sessionary.stream_processors.settings import ProcessorSettings
from sessionary.stream_processors.store.stores import (
    SAVED_AGE_MAX_S,
    MemoryStore,
    PartitionStores,
    RocksMemory,
    RocksStore,
    SavedPosition,
    Store,
)
from tests.core.oracle_rig import START_MS
from tests.core.store_rig import JOB, SETTINGS, ChangelogEntry, StoreRig
from tests.core.stream_processors.runtime.scripted_changelog import PARTITION, ScriptedChangelog
from tests.support.event_factory import EventFactory, snapshot
from tests.support.waiting import wait_until

SESSIONS = 12
FAILED_AT = 20  # so many records the first reader delivers
SAVED_AT = 18  # the end of a transaction
BLOCKS = 40_000  # of memory, a thousand bytes each


def test_all_recoveries_of_a_worker_prefetch_less_than_one_reader_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    configs: list[dict[str, Any]] = []
    monkeypatch.setattr(changelog, "Consumer", configs.append)
    reader_of(ProcessorSettings())
    assert configs[0]["queued.max.messages.kbytes"] == PREFETCH_KIB
    assert RECOVERIES_MAX * PREFETCH_KIB <= 65_536


def test_a_reader_waits_neither_before_it_connects_nor_for_records_that_may_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    configs: list[dict[str, Any]] = []
    monkeypatch.setattr(changelog, "Consumer", configs.append)
    reader_of(ProcessorSettings())
    assert {name: configs[0][name] for name in ("reconnect.backoff.ms", "fetch.wait.max.ms")} == {
        "reconnect.backoff.ms": 10,
        "fetch.wait.max.ms": 1,
    }


class DamagedChangelog:
    """A reader whose log begins with a batch of a wrong checksum."""

    def get_watermark_offsets(self, _: TopicPartition, timeout: float) -> tuple[int, int]:
        return 0, 9

    def assign(self, _: list[TopicPartition]) -> None:
        pass

    def poll(self, _: float) -> Message:
        error = KafkaError(KafkaError._BAD_MSG, "failed CRC32C check")
        return Message(topic="t.changelog", partition=3, offset=7, error=error)

    def consume(self, _: int, timeout: float) -> list[Message]:
        return []

    def close(self) -> None:
        pass


UNREADABLE = b"\xc3\x01" + bytes(16)  # of a schema that is not known any more


def open_changelog(entries: list[ChangelogEntry], monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    monkeypatch.setattr(changelog, "reader_of", ScriptedChangelog(entries))
    store = MemoryStore(JOB.row_codec)
    recover(SETTINGS, JOB.new_state(PARTITION), store, JOB.row_codec, lambda: True, RecoveryProgress())
    return store


@pytest.mark.parametrize("keys", [[b"row"], [POSITION_KEY], [b"%d" % number for number in range(150)]])
def test_a_record_that_cannot_be_decoded_halts_the_partition_by_name(
    keys: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Halted) as caught:
        open_changelog([ChangelogEntry(key, UNREADABLE, None) for key in keys], monkeypatch)
    assert caught.value.reason == "changelog_unreadable"
    for part in (f"offset 0, key {keys[0]!r}", "no schema", "sessionary partition rebuild 3"):
        assert part in caught.value.detail


def test_a_record_that_cannot_be_decoded_counts_no_more_once_a_later_one_replaces_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = StoreRig()
    agent = EventFactory("s1")
    created = agent.event_bytes("session_created", snapshot=snapshot("first", '{"n":1}'))
    rig.fold_records([LogRecord(0, START_MS, agent.key.encoded(), created)])
    torn = [ChangelogEntry(entry.key, UNREADABLE, None) for entry in rig.changelog]
    store = open_changelog([*torn, *rig.changelog], monkeypatch)
    assert store.count_again() == rig.store.count_again()
    with pytest.raises(Halted, match="changelog_unreadable"):
        open_changelog([*rig.changelog, torn[0]], monkeypatch)


def test_a_damaged_changelog_halts_the_partition_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changelog, "reader_of", lambda _: DamagedChangelog())
    settings = ProcessorSettings()
    job = processor_job(settings)
    store = PartitionStores(settings, None, job.row_codec).store_of(3)
    with pytest.raises(Halted, match="partition 3: the batch that begins at offset 7 of ") as caught:
        recover(settings, job.new_state(3), store, job.row_codec, lambda: True, RecoveryProgress())
    assert caught.value.reason == "changelog_unreadable"


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return new_store(getattr(request, "param", "memory"), tmp_path)


def new_store(kind: str, folder: Path) -> Store:
    return (
        MemoryStore(JOB.row_codec) if kind == "memory" else RocksStore(folder / "rows", JOB.row_codec, RocksMemory(1))
    )


@cache
def folded_sessions() -> StoreRig:
    """Return a fold of a few sessions, which wrote a changelog of some 40 records."""
    rig = StoreRig()
    for number in range(SESSIONS):
        agent = EventFactory(f"s{number}")
        created = agent.event_bytes("session_created", snapshot=snapshot("first", f'{{"n":"{"1" * 2_000}"}}'))
        rig.fold_records([LogRecord(number, START_MS + number, agent.key.encoded(), created)])
    return rig


def recover_from(
    log: ScriptedChangelog,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    wanted: Callable[[], bool] = lambda: True,
    changelog_end: int = 0,
) -> tuple[PartitionState, RecoveryProgress]:
    monkeypatch.setattr(changelog, "reader_of", log)
    state, progress = JOB.new_state(PARTITION), RecoveryProgress()
    end = recover(SETTINGS, state, store, JOB.row_codec, wanted, progress, changelog_end=changelog_end)
    assert end == len(log.entries)
    return state, progress


def check_recovered(state: PartitionState, rig: StoreRig) -> None:
    assert state.position == rig.state.position
    assert {key: state.rows[key] for key in state.rows} == {key: rig.state.rows[key] for key in rig.state.rows}
    assert (len(state.timers.keys()), state.next_deadline_ms) == (SESSIONS, rig.state.next_deadline_ms)


@pytest.mark.parametrize(
    ("store", "is_restarted"),
    [("memory", False), ("rocksdb", False), ("rocksdb", True)],
    indirect=["store"],
    ids=["memory", "rocksdb", "rocksdb after a crash"],
)
def test_what_a_failed_recovery_has_loaded_is_not_read_again(
    store: Store, is_restarted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RocksStore, "BATCH_ROWS", 0)  # each batch of records is written at once
    rig = folded_sessions()
    log = ScriptedChangelog(rig.changelog, limits=[FAILED_AT, 1])
    for _ in range(2):
        with pytest.raises(Lost):
            recover_from(log, store, monkeypatch)
        if is_restarted:
            store.close()
            store = new_store("rocksdb", tmp_path)
    state, progress = recover_from(log, store, monkeypatch)
    assert log.read_offsets == [
        list(range(FAILED_AT)),
        [FAILED_AT],
        list(range(FAILED_AT + 1, len(rig.changelog))),
    ]
    check_recovered(state, rig)
    assert not progress.found_damaged_store
    store.close()


@pytest.mark.parametrize("store", ["memory", "rocksdb"], indirect=True)
def test_a_store_that_goes_on_from_what_was_saved_is_not_thrown_back_to_that(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig, saved_s = folded_sessions(), time.time() - 100
    first = ScriptedChangelog(rig.changelog[:SAVED_AT])
    state, _ = recover_from(first, store, monkeypatch)
    store.save_rows({}, SavedPosition(state.position, SAVED_AT, saved_s))
    assert store.loading_mark is None
    log = ScriptedChangelog(rig.changelog, limits=[5])
    with pytest.raises(Lost):
        recover_from(log, store, monkeypatch)
    mark = store.loading_mark
    assert mark is not None
    assert (mark.changelog_next, mark.saved_s) == (SAVED_AT + 5, saved_s), "its deletions are as old as before"
    state, _ = recover_from(log, store, monkeypatch)
    assert log.read_offsets == [
        list(range(SAVED_AT, SAVED_AT + 5)),
        list(range(SAVED_AT + 5, len(rig.changelog))),
    ]
    check_recovered(state, rig)
    store.save_rows({}, SavedPosition(state.position, len(rig.changelog), time.time()))
    assert (store.loading_mark, store.row_sum) == (None, store.count_again())
    store.close()


@pytest.mark.parametrize("store", ["memory", "rocksdb"], indirect=True)
@pytest.mark.parametrize("change", ["too old", "below the first offset"])
def test_a_recovery_begins_again_if_its_mark_is_of_no_use(
    store: Store, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = folded_sessions()
    log = ScriptedChangelog(rig.changelog, limits=[FAILED_AT])
    with pytest.raises(Lost):
        recover_from(log, store, monkeypatch)
    assert store.loading_mark is not None
    begun_s = store.loading_mark.saved_s
    assert begun_s <= time.time()
    if change == "too old":  # Kafka may have dropped deletions in between
        store.load_rows({}, store.loading_mark._replace(saved_s=begun_s - SAVED_AGE_MAX_S))
    else:
        log.entries[:0] = [log.entries[0]] * len(log.entries)
        log.low = FAILED_AT + 1
    state, _ = recover_from(log, store, monkeypatch)
    assert log.read_offsets[1] == list(range(log.low, len(log.entries)))
    check_recovered(state, rig)
    store.close()


@pytest.mark.parametrize("store", ["memory", "rocksdb"], indirect=True)
def test_a_changelog_that_ends_before_the_store_halts_and_leaves_the_store(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = folded_sessions()
    state, _ = recover_from(ScriptedChangelog(rig.changelog), store, monkeypatch)
    store.save_rows({}, SavedPosition(state.position, len(rig.changelog), time.time()))
    cut = ScriptedChangelog(rig.changelog[:SAVED_AT])  # the end of a transaction
    for _ in range(2):
        with pytest.raises(Halted, match=rf"ends at {SAVED_AT}, .* offset 36 \(batch {SESSIONS}\)") as caught:
            recover_from(cut, store, monkeypatch, changelog_end=SAVED_AT)
        assert caught.value.reason == "position_lost"
    state, _ = recover_from(ScriptedChangelog(rig.changelog), store, monkeypatch)
    check_recovered(state, rig)
    store.close()


def test_no_recovery_goes_on_from_rows_that_are_not_all(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = folded_sessions()
    whole = ScriptedChangelog(rig.changelog)
    lossy = ScriptedChangelog([entry for entry in rig.changelog if entry.key != rig.changelog[0].key])
    with pytest.raises(Halted, match="changelog_incomplete"):
        recover_from(lossy, store, monkeypatch)
    assert store.loading_mark is None
    state, progress = recover_from(whole, store, monkeypatch)
    assert not progress.found_damaged_store
    check_recovered(state, rig)


@pytest.mark.parametrize("delivered", [0, FAILED_AT, 3 * SESSIONS], ids=["none", "some", "all but the end"])
def test_a_reader_that_stands_still_is_replaced_where_it_stands(
    delivered: int, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changelog, "RENEW_S", 0.01)
    rig = folded_sessions()
    assert len(rig.changelog) == 3 * SESSIONS
    log = ScriptedChangelog(rig.changelog, limits=[delivered], is_silent=True)
    state, _ = recover_from(log, store, monkeypatch)
    assert log.read_offsets == [list(range(delivered)), list(range(delivered, len(rig.changelog)))]
    check_recovered(state, rig)
    wait_until(lambda: all(reader.is_closed for reader in log.readers), 60, "clients that are closed")


def test_a_reader_is_kept_while_no_other_client_gets_an_answer(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changelog, "RENEW_S", 0.01)
    log = ScriptedChangelog(folded_sessions().changelog, limits=[FAILED_AT], is_silent=True)

    def go_away() -> bool:
        log.is_away = bool(log.readers[0].delivered)
        if len(log.readers) > 3:  # its patience ends after some clients without an answer
            monkeypatch.setattr(changelog, "_SILENCE_MAX_S", 0.0)
        return True

    with pytest.raises(Lost, match="silent"):
        recover_from(log, store, monkeypatch, go_away)
    assert len(log.readers) > 2
    assert len(log.read_offsets) == 1
    assert all(reader.is_closed for reader in log.readers)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="only this C library keeps what is freed, and can trim it"
)
def test_a_recovery_keeps_no_memory_that_it_has_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    gave_back: list[int] = []

    def give_back() -> None:
        blocks = [bytes(1_000) for _ in range(BLOCKS)]
        del blocks[:-1]  # the last one keeps the C library from freeing those before it
        before = resident_bytes()
        give_back_memory()
        gave_back.append(before - resident_bytes())

    monkeypatch.setattr(changelog, "give_back_memory", give_back)
    recover_from(ScriptedChangelog(folded_sessions().changelog), MemoryStore(JOB.row_codec), monkeypatch)
    assert [freed > BLOCKS * 500 for freed in gave_back] == [True]


def calls_of(work: Callable[[], object]) -> int:
    """Return how many calls the product's own code makes, of functions in Python or in C."""
    calls = 0

    def count_call(frame: FrameType, event: str, _arg: object) -> None:
        nonlocal calls
        is_product = "stream_processors/sessionary/" in frame.f_code.co_filename
        calls += is_product and event in {"call", "c_call"}

    sys.setprofile(count_call)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def test_a_session_is_recovered_with_few_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A million of them are: each call costs a hundredth of the time that one may take."""
    row = next(entry for entry in folded_sessions().changelog if entry.due is not None)
    made: list[int] = []
    for count in (100, 200):
        log = ScriptedChangelog([row._replace(key=b"acme:%d" % number) for number in range(count)])
        store = MemoryStore(JOB.row_codec)
        made.append(calls_of(lambda log=log, store=store: recover_from(log, store, monkeypatch)))  # type: ignore[misc]
    assert (made[1] - made[0]) / 100 < 16


def test_records_of_every_form_are_kept_as_they_were(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    row = next(entry for entry in folded_sessions().changelog if entry.due is not None)
    assert row.value is not None
    assert row.due is not None
    keys = [b"acme:%d" % number for number in range(9)]
    log = ScriptedChangelog([row._replace(key=key) for key in keys])
    log.entries[3:3] = [row._replace(key=keys[1], value=None, due=None)]
    other: list[tuple[str, str | bytes | None]] = [("other", b"1"), ("due", None), ("due", bytes(8)), ("due", b"-")]
    log.headers = {0: [], 4: other, 5: [("due", None)], 6: [("due", b"short")], 7: [("other", bytes(8))]}
    state, _ = recover_from(log, store, monkeypatch)
    whole = row.due + row.value
    wanted = dict.fromkeys(keys, whole) | {keys[1]: None, keys[3]: bytes(8) + row.value}
    assert {key: store.stored_row(key) for key in keys} == wanted
    assert len(state.rows) == len(keys) - 1


@pytest.mark.parametrize("held", [0, SAVED_AT, SAVED_AT + 3], ids=["nothing", "to the stable end", "more than that"])
def test_an_open_transaction_fails_the_reading_at_once_and_leaves_what_the_store_has(
    store: Store, held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = folded_sessions()
    log, end = ScriptedChangelog(rig.changelog), len(rig.changelog)
    if held:
        recover_from(ScriptedChangelog(rig.changelog[:held]), store, monkeypatch)
    log.hidden_from = SAVED_AT  # the end of a transaction: the rows are those of a position
    last = max(held, SAVED_AT)
    for _ in range(2):
        with pytest.raises(Halted, match=f"ends at {end}, .* follows offset {last}") as caught:
            recover_from(log, store, monkeypatch, changelog_end=end)
        assert caught.value.reason == "transaction_open"
        assert f"describe for {SETTINGS.group_id}-{SETTINGS.topics.events}-{PARTITION}" in caught.value.detail
    read = [offset for offsets in log.read_offsets for offset in offsets]
    assert read == ([] if held else list(range(SAVED_AT))), "nothing is read twice"
    log.hidden_from = None
    recover_from(log, store, monkeypatch, changelog_end=end)
    assert log.read_offsets[-1] == list(range(last, end))
