"""`sessionary rejected`: list rejected records, show one, send some again."""

import base64
import json
import logging
import re
from datetime import UTC, datetime
from typing import Annotated

import typer

from sessionary.infra.cli.commands.sessions.lookup import (
    OF_SESSION,
    RECENT,
    FollowOption,
    RowTail,
    SessionOption,
    SinceOption,
    fetch_horizon,
    follow_list,
    parse_since,
    session_start,
)
from sessionary.infra.cli.errors import NotFound
from sessionary.infra.cli.options import (
    DataOption,
    JsonOption,
    LimitOption,
    TenantOption,
    clickhouse_client,
    kafka_settings,
)
from sessionary.infra.cli.tables import show_object, show_rows
from sessionary.infra.clickhouse_client import ClickHouseClient, Row
from sessionary.schemas.errors import DecodeError, Invalid, Unavailable
from sessionary.schemas.headers import REPLAYED_FROM
from sessionary.schemas.settings import KafkaSettings

LogPositionArgument = Annotated[
    str, typer.Argument(help="The record's position in the events topic: PARTITION:OFFSET.")
]
# The columns that fit 80 come first: a reason says little without its detail.
COLUMNS = ("log_position", "time", "reason", "detail", "session_id", "event_type", "tenant_id", "security")
_REJECTIONS = (
    "SELECT *, concat(toString(source_partition), ':', toString(source_offset)) AS log_position FROM v_rejected "
    "WHERE ({reason:String} = '' OR reason = {reason:String}) "
    "AND ({tenant:String} = '' OR tenant_id = {tenant:String}) "
    "AND ({session:String} = '' OR "
    f"{OF_SESSION}) "
    "AND ({security:UInt8} = 0 OR security) "
    "AND time >= {since:DateTime64(6, 'UTC')}"
)
# A rejected record has no columns for these two; bytes that are no event have no values.
_BY_AGENT_OR_USER = (
    "AND (source_partition, source_offset, toDateTime64(appended_at, 3, 'UTC')) IN "
    "(SELECT source_partition, source_offset, appended_at FROM history "
    "WHERE appended_at >= toDateTime64({since:DateTime64(6, 'UTC')}, 3, 'UTC') "
    "AND ({user:String} = '' OR user_id = {user:String}) AND ({agent:String} = '' OR agent_id = {agent:String}))"
)
_LANDED = (
    "AND (source_topic, source_partition, source_offset) IN "
    f"(SELECT source_topic, source_partition, source_offset FROM rejected WHERE {RECENT}) "
    "ORDER BY time, source_partition, source_offset"
)
_LOG_POSITION = re.compile(r"(\d{1,9}):(\d{1,18})")
_REPLAYS_MAX = 1_000
_FLUSH_S = 15.0
_log = logging.getLogger(__name__)


def list_rejected(
    reason: Annotated[str | None, typer.Option("--reason", help="Only this reason.", show_default=False)] = None,
    tenant: TenantOption = None,
    session: SessionOption = None,
    user: Annotated[str | None, typer.Option("--user", help="Only records for this user.", show_default=False)] = None,
    agent: Annotated[
        str | None, typer.Option("--agent", help="Only records that this agent sent.", show_default=False)
    ] = None,
    security: Annotated[bool, typer.Option("--security", help="Only records that matter for security.")] = False,
    since: SinceOption = None,
    follow: FollowOption = False,
    limit: LimitOption = 50,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """List rejected records, newest first."""
    source = clickhouse_client(data)
    filters: dict[str, str | int] = {
        "reason": reason or "",
        "tenant": tenant or "",
        "session": session or "",
        "start": session_start(session or ""),
        "user": user or "",
        "agent": agent or "",
        "security": int(security),
        "since": parse_since(since, datetime.now(UTC)),
    }

    rejections = f"{_REJECTIONS} {_BY_AGENT_OR_USER}" if user or agent else _REJECTIONS

    def fetch_list() -> list[Row]:
        newest = "ORDER BY time DESC, source_partition, source_offset DESC LIMIT {limit:UInt32}"
        return source.fetch_rows(f"{rejections} {newest}", limit=limit, **filters)

    def fetch_landed(landed: str) -> list[Row]:
        return source.fetch_rows(f"{rejections} {_LANDED}", landed=landed, **filters)

    if follow:
        tail = RowTail(fetch_landed, lambda: fetch_horizon(source), lambda row: (row["log_position"], row["time"]))
        follow_list(tail, fetch_list, COLUMNS, as_json=as_json)
        return
    show_rows(fetch_list(), as_json=as_json, columns=COLUMNS)


def _find_rejected(source: ClickHouseClient, log_position: str) -> Row:
    match = _LOG_POSITION.fullmatch(log_position)
    if match is None:
        raise Invalid("invalid_value", f"{log_position!r} is not of the form PARTITION:OFFSET, such as 0:42")
    rows = source.fetch_rows(
        "SELECT appended_at, reason, detail, security, tenant_id, session_id, event_id, event_type, service_id, "
        "source_topic, source_partition, source_offset, base64Encode(key) AS key_base64, "
        "base64Encode(value) AS value_base64, mapApply((k, v) -> (k, base64Encode(v)), headers) AS headers_base64 "
        "FROM rejected FINAL WHERE source_partition = {partition:UInt32} AND source_offset = {offset:UInt64} "
        # The remainder of an older rejection only marks its row of history.
        "AND retain_until > now64(6)",
        partition=int(match[1]),
        offset=int(match[2]),
    )
    if not rows:
        raise NotFound(
            f"ClickHouse has no rejected record at {log_position}; sessionary rejected list shows those it has"
        )
    return rows[0]


def _from_base64(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def show_rejected(log_position: LogPositionArgument, data: DataOption = None, as_json: JsonOption = False) -> None:
    """Show one rejected record: key, headers and, if it can be decoded, its event."""
    from sessionary.schemas.codec import Decoder, Event

    row = _find_rejected(clickhouse_client(data), log_position)
    row["key"] = (_from_base64(row["key_base64"]) or b"").decode(errors="backslashreplace")
    row["headers"] = {
        name: base64.b64decode(value).decode(errors="backslashreplace")
        for name, value in row.pop("headers_base64").items()
    }
    try:
        event = Decoder().decode_event(_from_base64(row["value_base64"]))
        row["event"] = (
            {"envelope": event.envelope._asdict(), "payload": event.payload._asdict()}
            if isinstance(event, Event)
            else "tick"
        )
    except DecodeError as error:
        row["event"] = str(error)
    show_object(row, as_json=as_json)


def replay_rejected(
    log_positions: Annotated[list[str], typer.Argument(help="One or more log positions: PARTITION:OFFSET.")],
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send rejected records again, unchanged. The processor decides again.

    This helps if the cause is removed: an unknown schema after an upgrade, a session that exists by
    now. An event of work also fills the gap that its rejection left. Any other record is a
    duplicate if its sequence number was counted at the rejection.
    """
    if len(log_positions) > _REPLAYS_MAX:
        raise Invalid(
            "invalid_value", f"{len(log_positions)} records are too many: replay at most {_REPLAYS_MAX} at a time"
        )
    from sessionary.infra.topics import count_brokers

    source, kafka = clickhouse_client(data), kafka_settings(data)
    count_brokers(kafka)  # otherwise the records would wait for it in vain
    rows = [(log_position, _find_rejected(source, log_position)) for log_position in log_positions]
    show_rows(_produce_again(kafka, rows), as_json=as_json)


def _produce_again(settings: KafkaSettings, rows: list[tuple[str, Row]]) -> list[Row]:
    from confluent_kafka import KafkaError, KafkaException, Message, Producer

    from sessionary.schemas.kafka.clients import ORDERED, flush_producer

    producer = Producer({**settings.client_config(), **ORDERED}, logger=_log)
    sent: dict[str, Row] = {}
    try:
        for log_position, row in rows:

            def on_delivery(error: KafkaError | None, message: Message, log_position: str = log_position) -> None:
                if error is None:
                    sent[log_position] = {"replayed": log_position, "as": f"{message.partition()}:{message.offset()}"}

            headers: list[tuple[str, str | bytes | None]] = [
                (name, base64.b64decode(value)) for name, value in row["headers_base64"].items()
            ]
            headers.append((REPLAYED_FROM, json.dumps(f"{row['source_topic']}:{log_position}")))
            producer.produce(
                settings.topics.events,
                _from_base64(row["value_base64"]),
                _from_base64(row["key_base64"]),
                headers=headers,
                on_delivery=on_delivery,
            )
        flush_producer(producer, _FLUSH_S)
    except KafkaException as error:
        raise Unavailable(f"Kafka at {settings.bootstrap_servers} rejects: {error.args[0].str()}", _FLUSH_S) from error
    if len(sent) < len(rows):
        raise Unavailable(
            f"Kafka at {settings.bootstrap_servers} acknowledged {len(sent)} of {len(rows)} records", _FLUSH_S
        )
    return [sent[log_position] for log_position, _ in rows]
