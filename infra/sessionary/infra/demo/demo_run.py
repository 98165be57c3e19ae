"""A whole demo run against a running stack, from the plan to the report."""

import json
import logging
import secrets
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition

from sessionary.infra.clickhouse_client import ClickHouseClient, Row
from sessionary.infra.demo.plan import Plan, make_plan
from sessionary.infra.demo.plan_runner import PlanRunner
from sessionary.infra.demo.report import Report, make_report
from sessionary.infra.demo.runs import Run, sample_runs
from sessionary.infra.demo.wait import PatientClickHouse, check_rows, check_sessions, wait_until_done
from sessionary.infra.environment import TENANTS, tenant_tokens
from sessionary.infra.topics import count_brokers
from sessionary.schemas.errors import Invalid, SettingsError, Unavailable
from sessionary.schemas.settings import ClickHouseSettings, KafkaSettings

# The ledger of a demo run in ClickHouse: the sessions that were planned, the events acknowledged.
#
# The tables `demo_sessions` and `demo_journal` are in the pipeline's database. They hold the rows
# of many demo runs by `demo_id`, for a week.


_BLOCK_ROWS = 10_000
_TABLES = (
    """CREATE TABLE IF NOT EXISTS demo_sessions
    (
        demo_id String, tenant_id LowCardinality(String), session_id String, service_id LowCardinality(String),
        run_name String, outcome LowCardinality(String), silent Bool, expected Array(String),
        written_at DateTime('UTC') DEFAULT now()
    )
    ENGINE = MergeTree ORDER BY (demo_id, session_id) TTL written_at + INTERVAL 7 DAY""",
    """CREATE TABLE IF NOT EXISTS demo_journal
    (
        demo_id String, event_id String, event_type LowCardinality(String), tenant_id LowCardinality(String),
        session_id String, producer_id String, producer_seq Int64, partition Nullable(UInt32),
        offset Nullable(UInt64), error Nullable(String), written_at DateTime('UTC') DEFAULT now()
    )
    ENGINE = MergeTree ORDER BY (demo_id, event_id) TTL written_at + INTERVAL 7 DAY""",
)


def record_plan(clickhouse: ClickHouseClient, plan: Plan) -> None:
    """Create missing tables and insert the plan. Blocks. Raises as `ClickHouseClient` does."""
    for table in _TABLES:
        clickhouse.execute(table)
    clickhouse.insert_rows(
        "demo_sessions",
        (
            {
                "demo_id": plan.demo_id,
                "tenant_id": session.tenant_id,
                "session_id": session.session_id,
                "service_id": session.service_id,
                "run_name": session.run_name,
                "outcome": session.outcome,
                "silent": session.silent,
                "expected": session.expected,
            }
            for session in plan.sessions
        ),
    )


def _journal_lines(journals: Iterable[Path]) -> Iterator[Row]:
    for path in journals:
        with path.open() as lines:
            for number, line in enumerate(lines, 1):
                try:
                    yield json.loads(line)
                except ValueError:
                    raise Invalid("undecodable", f"{path}, line {number} is not JSON") from None


def load_journals(clickhouse: ClickHouseClient, demo_id: str, journals: Iterable[Path]) -> int:
    """Insert every line of the journals, return their number. Blocks.

    If ClickHouse fails meanwhile, waits for it, and begins again. Raises `Invalid` for a broken
    line, and as `ClickHouseClient` does.
    """
    paths = list(journals)
    try:
        return _insert_journals(clickhouse, demo_id, paths)
    except Unavailable:
        clickhouse.fetch_rows("SELECT 1")  # waits, if the client is a patient one
        clickhouse.execute(f"DELETE FROM demo_journal WHERE demo_id = '{demo_id}'")  # of a block in part
        return _insert_journals(clickhouse, demo_id, paths)


def _insert_journals(clickhouse: ClickHouseClient, demo_id: str, journals: Iterable[Path]) -> int:
    lines, count = _journal_lines(journals), 0
    while block := [{**line, "demo_id": demo_id} for line in islice(lines, _BLOCK_ROWS)]:
        clickhouse.insert_rows("demo_journal", block)
        count += len(block)
    return count


_STALL_S = 60.0
_CLOCK_SLACK_MS = 1_000
_WARM_UP_RUNS = 50
_TIMEOUT_S = 15.0
_POLL_S = 0.2
_log = logging.getLogger(__name__)


def run_demo(
    runs: Sequence[Run],
    environ: Mapping[str, str],
    *,
    speed: float,
    seed: int,
    gap_s_max: float,
    progress: Callable[[str], None],
    on_action_error: Callable[[str], None],
) -> Report:
    """Run the recorded runs as sessions, wait for the pipeline, account for every event. Blocks.

    `environ`: the stack's variables. `gap_s_max`: the longest time between two starts, in recorded
    seconds. `progress` is called with lines of progress, `on_action_error` with failed actions,
    which are left out. Raises `SettingsError` if the stack has no token for a tenant, and as
    `count_brokers`, the client and `ClickHouseClient` do.
    """
    began = time.monotonic()
    started_ms = time.time_ns() // 1_000_000 - _CLOCK_SLACK_MS
    tokens = tenant_tokens(environ)
    if missing := sorted(TENANTS.keys() - tokens.keys()):
        raise SettingsError(f"SESSIONARY_API_TOKENS has no token for {', '.join(missing)}: add one per tenant")
    plan = make_plan(runs, demo_id=secrets.token_hex(8), seed=seed, speed=speed, gap_s_max=gap_s_max)
    clickhouse = PatientClickHouse(ClickHouseSettings.from_env(environ), progress)
    kafka = KafkaSettings.from_env(environ)
    count_brokers(kafka)  # otherwise the clients would fill their spools, and wait
    record_plan(clickhouse, plan)
    limits = plan.sessions[0].limits
    # Nothing may move for this long without a fault: a silent session's inactivity limit, and the
    # processor's pause after an outage.
    stall_s = _STALL_S + sum((limits.model_ms or 0, limits.tool_ms or 0, limits.network_ms or 0)) / 1e3 + 25.0
    with tempfile.TemporaryDirectory(prefix="sessionary-demo-") as folder:
        with PlanRunner(plan, environ, tokens, Path(folder), on_action_error) as plan_runner:
            plan_runner.run_plan(progress)
            wait_until_done(lambda: check_sessions(clickhouse, plan.demo_id), stall_s, progress)
        load_journals(clickhouse, plan.demo_id, plan_runner.journal_paths)
        counts = plan_runner.counts
    wait_until_done(lambda: check_rows(clickhouse, plan.demo_id), _STALL_S, progress)
    other_bytes = count_other_bytes(kafka, started_ms, on_action_error)
    return make_report(clickhouse, plan.demo_id, counts, other_bytes, time.monotonic() - began)


def count_other_bytes(kafka: KafkaSettings, since_ms: int, on_error: Callable[[str], None]) -> dict[str, int] | None:
    """Return the bytes since `since_ms` of the topics that no sink reads, by name.

    None if Kafka does not answer any more: `on_error` gets the reason, and all other figures are
    known without Kafka. Blocks.
    """
    others = {"cleanup": kafka.topics.cleanup, "changelog": kafka.topics.changelog}
    try:
        sizes = topic_bytes(kafka, others.values(), since_ms)
    except Unavailable as error:
        on_error(f"the bytes of {' and '.join(others)} are left out, and with them audit io share: {error}")
        return None
    return {name: sizes[topic] for name, topic in others.items()}


def warm_up(
    environ: Mapping[str, str], progress: Callable[[str], None], on_action_error: Callable[[str], None]
) -> None:
    """Run sessions for some seconds without a report: a new broker compiles its code as it serves.

    All of these sessions end by themselves, so they have no effect on a later demo run. Blocks.
    Raises as `run_demo` does.
    """
    plan = make_plan(sample_runs(_WARM_UP_RUNS), demo_id=secrets.token_hex(8), speed=600.0, gap_s_max=60.0)
    plan = plan._replace(sessions=tuple(session for session in plan.sessions if session.expected[-1] == "T13"))
    clickhouse = ClickHouseClient(ClickHouseSettings.from_env(environ))
    record_plan(clickhouse, plan)
    with (
        tempfile.TemporaryDirectory(prefix="sessionary-demo-") as folder,
        PlanRunner(plan, environ, tenant_tokens(environ), Path(folder), on_action_error) as plan_runner,
    ):
        plan_runner.run_plan(lambda text: progress(f"warming up: {text}"))
        wait_until_done(lambda: check_sessions(clickhouse, plan.demo_id), _STALL_S, lambda _text: None)


def topic_bytes(settings: KafkaSettings, topics: Iterable[str], since_ms: int) -> dict[str, int]:
    """Return, by topic, the bytes of its committed records since `since_ms` (ms since the epoch).

    Blocks. Raises `Unavailable`, within 3 s if no broker answers, and as `count_brokers` does.
    """
    count_brokers(settings)
    sums = dict.fromkeys(topics, 0)
    consumer = Consumer(
        settings.reader_config_of(f"{settings.topic_prefix}.byte-count"),
        logger=_log,
    )
    try:
        at = [TopicPartition(topic, n, since_ms) for topic in sums for n in range(settings.partitions)]
        # OFFSET_END: the partition has no record that is so young.
        starts = [place for place in consumer.offsets_for_times(at, timeout=_TIMEOUT_S) if place.offset != OFFSET_END]
        consumer.assign(starts)
        unread = {(place.topic, place.partition) for place in starts}
        last_message_at = time.monotonic()
        while unread:
            messages = consumer.consume(1_000, _POLL_S)
            if messages:
                last_message_at = time.monotonic()
            elif time.monotonic() - last_message_at > _TIMEOUT_S:
                raise Unavailable(f"Kafka at {settings.bootstrap_servers} does not answer", _TIMEOUT_S)
            for message in messages:
                error, topic = message.error(), message.topic()
                if error is not None and error.code() == KafkaError._PARTITION_EOF:
                    # Reported again if more records came in the meantime.
                    unread.discard((topic or "", message.partition() or 0))
                elif error is None and topic is not None:
                    sums[topic] += len(message.key() or b"") + len(message.value() or b"")
    except KafkaException as error:
        raise Unavailable(f"Kafka at {settings.bootstrap_servers}: {error}", _TIMEOUT_S) from None
    finally:
        consumer.close()
    return sums
