"""The whole pipeline on real parts: client, Kafka, processor, ClickHouse.

The log is then folded again, once from Kafka and once from ClickHouse.
"""

import json
from collections import Counter
from pathlib import Path

from confluent_kafka import Producer

from sessionary.producers import SessionClient
from sessionary.schemas.codec import Decoder
from sessionary.schemas.events import LlmDecision
from sessionary.schemas.ids import SessionKey, new_session_id
from sessionary.schemas.records import AuditRecord, Position, RejectedEvent
from sessionary.schemas.settings import ClickHouseSettings, KafkaSettings
from sessionary.stream_processors.core.committed import PartitionSettings
from sessionary.stream_processors.core.model import LogRecord
from sessionary.stream_processors.core.session.effects import SessionRow
from sessionary.stream_processors.store.cached_rows import CachedRows
from sessionary.stream_processors.store.packed_rows import FamilyCodec
from tests.auditor import oracle
from tests.integration.pipeline_rig import TENANT, PipelineRig, brief_limits
from tests.integration.refold import RefoldResult, find_differences, refold
from tests.support.judges import JUDGE
from tests.support.pipelines import run_sql
from tests.support.processes import Processes
from tests.support.reading import read_records, read_topic
from tests.support.waiting import wait_until

POSITION_KEY = b"\x00position"
FINISHING, SILENT, FAILING, PAUSING = 12, 4, 3, 3


def work(client: SessionClient, turns: int = 4) -> str:
    with client.session(user_id="u1", state={"turn": 0}, data_classes=("personal",)) as session:
        for turn in range(turns):
            session.activity("llm", "thinking")
            session.emit(LlmDecision(model="m", chosen_tools=("search",), inputs_json=None, output_text="x" * 200))
            session.usage(model="m", tokens_in=100, tokens_out=20, model_cost_usd_nanos=5)
            session.update_state({"turn": turn + 1})
        return session.session_id


def fall_silent(client: SessionClient) -> str:
    session = client.create(user_id="u2", state={}, limits=brief_limits()).start()
    session.lifecycle.detach()  # at once: on a busy machine what it does later may be too late
    return session.session_id


def fail_and_recover(client: SessionClient) -> str:
    session = client.create(user_id="u3", state={"n": 1}).start()
    session.error(TimeoutError("model did not answer"), retryable=True)
    session.recover()
    session.complete()
    return session.session_id


def pause_and_resume(client: SessionClient) -> str:
    session = client.create(user_id="u4", state={"n": 7}).start()
    session.pause("lunch")
    assert session.resume() == {"n": 7}
    session.close()
    return session.session_id


def send_garbage(kafka: KafkaSettings, live_session: str) -> int:
    """Send records that no client would send; return their number."""
    producer = Producer({**kafka.client_config(), "partitioner": "murmur2_random"})
    key = SessionKey(TENANT, live_session).encoded()
    values = [b"", b"\xc3\x01", b"\xc3\x01" + bytes(8) + b"x", b"\x00\x00\x00\x00\x07abc", b"{}"]
    for value in values:
        producer.produce(kafka.topics.events, key=key, value=value)
    producer.produce(kafka.topics.events, key=b"no-key-of-ours", value=b"\xc3\x01")
    stray = SessionKey(TENANT, new_session_id()).encoded()
    for partition in range(kafka.partitions):
        producer.produce(kafka.topics.events, key=stray, value=values[2], partition=partition)
    assert producer.flush(120) == 0
    return len(values) + 1 + kafka.partitions


def log_in_kafka(kafka: KafkaSettings) -> dict[int, list[LogRecord]]:
    log: dict[int, list[LogRecord]] = {}
    for stored in read_topic(kafka, kafka.topics.events):
        record = LogRecord(stored.offset, stored.timestamp_ms, stored.key, stored.value, stored.headers)
        log.setdefault(stored.partition, []).append(record)
    return log


def log_in_clickhouse(clickhouse: ClickHouseSettings) -> dict[int, list[LogRecord]]:
    log: dict[int, list[LogRecord]] = {}
    rows = run_sql(
        clickhouse,
        "SELECT source_partition, source_offset, toUnixTimestamp64Milli(appended_at) AS at, hex(key_bytes) AS k, "
        "hex(value_bytes) AS v, has_key FROM "
        f"(SELECT *, event_type != 'tick' AS has_key FROM {clickhouse.clickhouse_database}.history FINAL) "
        "ORDER BY source_partition, source_offset FORMAT JSONEachRow",
    )
    for line in rows.splitlines():
        row = json.loads(line)
        key = bytes.fromhex(row["k"]) if int(row["has_key"]) else None
        record = LogRecord(int(row["source_offset"]), int(row["at"]), key, bytes.fromhex(row["v"]))
        log.setdefault(int(row["source_partition"]), []).append(record)
    return log


def table_in_kafka(kafka: KafkaSettings) -> tuple[dict[bytes, SessionRow], dict[int, int]]:
    """Return the changelog's rows, and by partition the offset up to which they are complete."""
    codec, shelf, ends = FamilyCodec(JUDGE.families), dict[bytes, bytes](), dict[int, int]()
    for stored in read_topic(kafka, kafka.topics.changelog):
        assert stored.key is not None
        if stored.value is None:
            shelf.pop(stored.key, None)
        elif stored.key == POSITION_KEY:
            position = Decoder().decode_record(stored.value)
            assert isinstance(position, Position)
            ends[stored.partition] = position.next_offset
        else:
            shelf[stored.key] = codec.repack(stored.value, None)
    return dict(CachedRows(shelf, codec)), ends


def cut(log: dict[int, list[LogRecord]], ends: dict[int, int]) -> dict[int, list[LogRecord]]:
    return {partition: [r for r in records if r.offset < ends.get(partition, 0)] for partition, records in log.items()}


def test_the_whole_pipeline(
    kafka: KafkaSettings, clickhouse: ClickHouseSettings, processes: Processes, tmp_path: Path
) -> None:
    pipeline = PipelineRig(kafka, clickhouse, processes)
    pipeline.start_sinks()
    processor = pipeline.start_processor()
    with SessionClient(
        tenant_id=TENANT, service_id="billing", agent_id="agent-1", settings=pipeline.client_settings(tmp_path)
    ) as client:
        client.on_cleanup(lambda request: None)
        finished = [work(client) for _ in range(FINISHING)]
        silent = [fall_silent(client) for _ in range(SILENT)]
        recovered = [fail_and_recover(client) for _ in range(FAILING)]
        resumed = [pause_and_resume(client) for _ in range(PAUSING)]
        garbage = send_garbage(kafka, finished[0])
        everyone = finished + silent + recovered + resumed

        def all_archived() -> bool:
            ends = Counter(
                record.session_id
                for record in read_records(kafka, kafka.topics.audit)
                if isinstance(record, AuditRecord) and record.transition == "T14"
            )
            return all(ends[session] == 1 for session in silent)

        wait_until(all_archived, 60, "the silent sessions to time out, end and be archived", pause_s=0.5)
        assert client.flush(120) == 0
    processor.stop(180)
    pipeline.wait_landed()

    audits = [record for record in read_records(kafka, kafka.topics.audit) if isinstance(record, AuditRecord)]
    paths = {
        session: [r.transition for r in audits if r.session_id == session and r.transition] for session in everyone
    }
    assert all(paths[session][:3] == ["T01", "T02", "T13"] for session in finished)
    assert all(paths[session] == ["T01", "T02", "T06", "T08", "T14"] for session in silent)
    assert all(paths[session][:5] == ["T01", "T02", "T10", "T11", "T13"] for session in recovered)
    assert all(paths[session][:5] == ["T01", "T02", "T04", "T05", "T13"] for session in resumed)

    rejected = [record for record in read_records(kafka, kafka.topics.rejected) if isinstance(record, RejectedEvent)]
    reasons = Counter(record.reason for record in rejected if not may_be_late(record))
    assert reasons.total() == garbage, reasons

    check_folded_again(kafka, clickhouse, audits, rejected)
    check_oracle(kafka, audits, rejected)
    check_clickhouse(pipeline, audits, rejected, tmp_path)


def may_be_late(record: RejectedEvent) -> bool:
    """Return whether it may come after its time: a heartbeat, a clean-up's answer and phase."""
    is_phase = record.event_type == "session_phase_changed" and record.reason in ("phase_order", "session_archived")
    return is_phase or record.event_type in ("resources_released", "heartbeat")


def check_folded_again(
    kafka: KafkaSettings, clickhouse: ClickHouseSettings, audits: list[AuditRecord], rejected: list[RejectedEvent]
) -> None:
    """Table, timeouts and rejections are a pure fold of the log, read from Kafka or ClickHouse."""
    rows, ends = table_in_kafka(kafka)
    settings = PartitionSettings(kafka.topics.events, kafka.partitions)
    from_kafka = refold(cut(log_in_kafka(kafka), ends), settings)
    assert find_differences(from_kafka, rows, audits) == []
    check_rejections(from_kafka, rejected)
    from_clickhouse = refold(cut(log_in_clickhouse(clickhouse), ends), settings)
    assert find_differences(from_clickhouse, rows, audits) == []
    check_rejections(from_clickhouse, rejected)
    assert from_kafka.timers > SILENT


def check_rejections(expected: RefoldResult, rejected: list[RejectedEvent]) -> None:
    def places(records: list[RejectedEvent]) -> list[tuple[int, int, str, bytes | None]]:
        return sorted((r.source_partition, r.source_offset, r.reason, r.value) for r in records)

    assert places(expected.rejected) == places(rejected)


def check_oracle(kafka: KafkaSettings, audits: list[AuditRecord], rejected: list[RejectedEvent]) -> None:
    """The oracle, which shares no code with the processor, computes the same."""
    _, ends = table_in_kafka(kafka)
    entries = [
        oracle.LogEntry(partition, *record)
        for partition, records in cut(log_in_kafka(kafka), ends).items()
        for record in records
    ]
    plain = [[record._asdict() for record in records] for records in (audits, rejected)]
    assert oracle.find_differences(oracle.replay_log(entries, kafka.partitions), *plain) == []


def check_clickhouse(
    pipeline: PipelineRig, audits: list[AuditRecord], rejected: list[RejectedEvent], folder: Path
) -> None:
    """Each audit record and rejection has one row; each journalled event has one history row."""
    assert pipeline.sql("SELECT count(), uniqExact(audit_id) FROM {db}.audit") == [[str(len(audits))] * 2]
    assert pipeline.sql("SELECT count() FROM {db}.rejected") == [[str(len(rejected))]]
    assert pipeline.sql("SELECT * FROM {db}.v_integrity") == []
    journal = [json.loads(line) for line in (folder / "agent-journal.ndjson").read_text().splitlines()]
    sent = {line["event_id"] for line in journal if line["producer_seq"] > 0}
    rows = pipeline.sql("SELECT event_id, count() FROM {db}.history WHERE producer_seq > 0 GROUP BY event_id")
    stored = {event_id: int(count) for event_id, count in rows}
    assert sent <= stored.keys()
    assert {event_id for event_id, count in stored.items() if count > 1} == set()
    assert len(sent) > 200
