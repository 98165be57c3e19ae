"""(n) A session's state at a point: from local files, memory, the store, and ClickHouse.

The targets of the reads are those of R-003-73.

The long session has 10,000 updates of a content of 4 kB. It is folded again, whole, by the judge's
rules; each fold must come to all hashes that the judge left. In ClickHouse its records lie among
3,000,000 others of the same partition, and a short session is read there too.
"""

import json
import pickle
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Final

from benchmarks.bench import Bench
from benchmarks.harness.stack import Stack, running_stack
from benchmarks.results import Result, Target, quantile
from benchmarks.workload.long_session import EVERY, STATE_BYTES, STEP_MS, LongSession, make_session
from sessionary.infra.clickhouse_client import ClickHouseClient
from sessionary.infra.past_rows import PastRows
from sessionary.schemas.codec import Decoder, encode_record
from sessionary.schemas.settings import ClickHouseSettings
from sessionary.sinks.clickhouse import migrate
from sessionary.sinks.core.rows.shared import RawRecord
from sessionary.stream_processors.api.past import PastStates
from sessionary.stream_processors.core.past import HashCheck, PastLog, PastState, Point, past_document, state_at
from sessionary.stream_processors.core_build import core_build
from sessionary.stream_processors.store.stores import RocksMemory, RocksStore
from tests.core.store_rig import JOB, SETTINGS, StoreRig
from tests.support.clickhouse_rows import insert_raws

EVENTS, EVENTS_QUICK = 10_000, 300
OTHERS, OTHERS_QUICK = 3_000_000, 30_000
SHORT_EVENTS = 100
READS, READS_QUICK = 200, 20
STORED_SESSIONS, STORED_SESSIONS_QUICK = 1_000, 50
FOLD_S_MAX: Final = {"native": 1.0, "python": 3.0}
ROWS_S_MAX = 3.0
MEMORY_MS_MAX, STORE_MS_MAX, CLICKHOUSE_MS_MAX = 1.0, 10.0, 200.0
_NOTHING_CHECKED: Final = HashCheck("equal", 0, None)
_AGO = timedelta(hours=6)
_INSERT_S_MAX = 600.0
_FILL: Final = (
    "INSERT INTO history (source_partition, source_offset, appended_at, occurred_at, event_id, event_type, tenant_id, "
    "session_id, user_id, agent_id, service_id, producer_id, producer_seq, payload_json, key_bytes, value_bytes, "
    "retention_class, retain_until, personal_expires, src_topic) "
    "WITH intDiv(number, 1000) AS g, "
    f"fromUnixTimestamp64Milli(toInt64({{began_ms}} + intDiv(number * {STEP_MS}, {EVERY}))) AS at, "
    "toString(reinterpretAsUUID(sipHash128(g))) AS session "
    "SELECT 0, number, at, at, toString(number), 'session_activity', concat('tenant-', toString(g % 3)), session, "
    "'user', 'agent', 'service', session, number, '{{\"kind\":\"message\"}}', session, "
    "repeat(toString(sipHash64(number)), 20), "
    "'default', toDateTime64('2090-01-01 00:00:00', 6, 'UTC'), toDateTime('2105-01-01'), 't' FROM numbers({others}) "
    "WHERE number NOT IN ({taken})"
)


def fold_records(session: LongSession) -> PastState:
    """Return a session's state after its last record."""
    state = JOB.new_state(0)
    log = PastLog(session.records, session.trail, session.end, state.settings, state.judge, Decoder())
    return state_at(log, session.session, 0, _last_point(session))


def fold_file(file: Path, events: int) -> float:
    """Read a session's records from a file, and fold all; return the seconds that this took."""
    began_s = time.perf_counter()
    with file.open("rb") as stored:
        session: LongSession = pickle.load(stored)
    found = fold_records(session)
    took_s = time.perf_counter() - began_s
    _check_state(found, events)
    return took_s


def _last_point(session: LongSession) -> Point:
    return Point("offset", session.end.next_offset - 1)


def _check_state(state: PastState, events: int) -> None:
    """Raise `RuntimeError` unless a state is that after all events, as the judge's hashes say."""
    version = getattr(state.row, "version", None)
    if state.check.verdict != "equal" or not state.check.equal or version != events + 1:
        raise RuntimeError(f"the state after {events} events has version {version}, and its hashes are {state.check}")


def _time_reads(read: Callable[[int], object], reads: int) -> float:
    """Return the time within which 95 % of so many reads end, in ms."""
    spent: list[float] = []
    for number in range(reads):
        began_s = time.perf_counter()
        read(number)
        spent.append((time.perf_counter() - began_s) * 1e3)
    return quantile(sorted(spent), 0.95)


def read_memory(state: PastState, session: LongSession, reads: int) -> float:
    """Return the p95 of reads of a state that a worker has told before, as a JSON document, ms."""
    states, point = PastStates(10, 3_600.0), _last_point(session)
    states.keep(session.session, point, state)

    def read(_: int) -> None:
        found = states.find(session.session, point)
        assert found is not None
        json.dumps(past_document(found, "memory", session.session, 0, point))

    return _time_reads(read, reads)


def fill_store(folder: Path, sessions: int, began_ms: int) -> tuple[StoreRig, list[LongSession]]:
    """Return a store in RocksDB with the rows of so many sessions, and the sessions."""
    rig, made = StoreRig(RocksStore(folder, JOB.row_codec, RocksMemory(1))), list[LongSession]()
    for number in range(sessions):
        made.append(make_session(f"stored {number}", 1, number, began_ms, rig.state.position.next_offset))
        rig.fold_records(made[-1].records)
    return rig, made


def read_store(rig: StoreRig, sessions: Sequence[LongSession], reads: int, random: Random) -> float:
    """Return the p95 of reads of rows that are in the database only, as documents, ms."""
    keys = random.sample(range(len(sessions)), min(reads, len(sessions)))

    def read(number: int) -> None:
        session = sessions[keys[number % len(keys)]]
        row = rig.store.rows.peek(session.session.encoded())
        state = PastState(row, {}, 0, 0, 0, _NOTHING_CHECKED, (), None, ())
        json.dumps(past_document(state, "row", session.session, 0, Point("offset", 0)))

    rig.store.rows.forget_unsaved()
    return _time_reads(read, reads)


def insert_session(clickhouse: ClickHouseSettings, session: LongSession, token: str) -> None:
    """Insert a session's records and audit trail, as the sinks do."""
    raws = [RawRecord("t", 0, offset, at_ms, key, value) for offset, at_ms, key, value, *_ in session.records]
    insert_raws(clickhouse, "history", raws, f"{token} history")
    trail = [
        RawRecord("a", 0, place, audit.appended_at // 1_000, b"k", encode_record(audit))
        for place, audit in enumerate(session.trail)
    ]
    insert_raws(clickhouse, "audit", trail, f"{token} audit")


def read_rows(clickhouse: ClickHouseSettings, session: LongSession) -> float:
    """Fold a session from ClickHouse; return the seconds that this took."""
    began_s = time.perf_counter()
    rows = PastRows(ClickHouseClient(clickhouse, _INSERT_S_MAX), SETTINGS)
    (found,), _ = rows.states_at(session.session, [_last_point(session)])
    took_s = time.perf_counter() - began_s
    _check_state(found, getattr(found.row, "version", 0) - 1)
    return took_s


def fill_others(client: ClickHouseClient, others: int, began_ms: int, sessions: Sequence[LongSession]) -> None:
    """Insert records of others at all offsets up to that number that the sessions do not have."""
    taken = ",".join(str(record.offset) for session in sessions for record in session.records)
    client.execute(_FILL.format(began_ms=began_ms, others=others, taken=taken))


def measure_clickhouse(bench: Bench, stack: Stack, long: LongSession, began_ms: int) -> list[Result]:
    """Measure folds and reads from ClickHouse, beside the records of others."""
    others = OTHERS_QUICK if bench.options.quick else OTHERS
    reads = READS_QUICK if bench.options.quick else READS
    clickhouse = stack.new_database()
    migrate.apply_migrations(clickhouse)
    bench.print_progress(f"making {others:,} rows of others")
    short = make_session("short", SHORT_EVENTS, bench.options.seed, began_ms, EVERY // 2)
    fill_others(ClickHouseClient(clickhouse, _INSERT_S_MAX), others, began_ms, (long, short))
    insert_session(clickhouse, long, "long")
    insert_session(clickhouse, short, "short")
    read_rows(clickhouse, short)  # the first one loads the schemas; not counted
    folds = bench.repeat("fold from ClickHouse", lambda _n: read_rows(clickhouse, long))
    p95s = bench.repeat("reads from ClickHouse", lambda _n: _time_reads(lambda _: read_rows(clickhouse, short), reads))
    notes = (
        f"beside {others:,} rows of others in the same partition, of {long.records[-1].timestamp_ms - began_ms:,} ms",
        f"a read: the state of a session of {SHORT_EVENTS} such events, folded from ClickHouse",
    )
    target = Target("<=", ROWS_S_MAX)
    return [
        Result("fold, from ClickHouse", "s", folds, target, notes),
        Result("read, from ClickHouse, p95", "ms", p95s, Target("<=", CLICKHOUSE_MS_MAX)),
    ]


def run(bench: Bench) -> list[Result]:
    """Measure each source."""
    quick = bench.options.quick
    events = bench.event_count(EVENTS, EVENTS_QUICK)
    began_ms = int((datetime.now(UTC) - _AGO).timestamp() * 1e3)
    bench.print_progress(f"making a session of {events:,} events")
    long = make_session("long", events, bench.options.seed, began_ms)
    reads = READS_QUICK if quick else READS
    with running_stack(bench, with_broker=False) as stack:
        file = stack.folder / "session"
        file.write_bytes(pickle.dumps(long))
        folds = bench.repeat("fold from a file", lambda _n: fold_file(file, events))
        state = fold_records(long)
        in_memory = bench.repeat("reads from memory", lambda _n: read_memory(state, long, reads))
        rig, stored = fill_store(stack.folder / "store", STORED_SESSIONS_QUICK if quick else STORED_SESSIONS, began_ms)
        random = Random(bench.options.seed)
        in_store = bench.repeat("reads from the store", lambda _n: read_store(rig, stored, reads, random))
        rig.store.close()
        found = measure_clickhouse(bench, stack, long, began_ms)
    notes = (
        f"{events:,} updates of a content of {STATE_BYTES:,} bytes; the core is {core_build()}; all hashes are checked",
        f"in the store: RocksDB with {len(stored):,} such sessions; a state is read once, and made a JSON document",
    )
    return [
        Result("fold, from a file", "s", folds, Target("<=", FOLD_S_MAX[core_build()]), notes),
        found[0],
        Result("read, from memory, p95", "ms", in_memory, Target("<=", MEMORY_MS_MAX)),
        Result("read, from the store, p95", "ms", in_store, Target("<=", STORE_MS_MAX)),
        found[1],
    ]
