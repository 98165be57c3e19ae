"""`sessionary rejected`: the refused records, and a second chance for them."""

import base64
import json
import logging
import re
from typing import Annotated

import typer

from sessionary.infra.cli.errors import NotFound
from sessionary.infra.cli.options import (
    DataOption,
    JsonOption,
    LimitOption,
    TenantOption,
    clickhouse,
    kafka_settings,
)
from sessionary.infra.cli.output import show_object, show_rows
from sessionary.infra.clickhouse import ClickHouse, Row
from sessionary.schemas.codec import Decoder, Event
from sessionary.schemas.errors import DecodeError, Invalid, Unavailable
from sessionary.schemas.settings import KafkaSettings

app = typer.Typer(no_args_is_help=True, help="List, show and replay refused records.")
PlaceArgument = Annotated[str, typer.Argument(help="Where it stood: PARTITION:OFFSET.")]
_COLUMNS = ("place", "appended_at", "reason", "session_id", "event_type", "tenant_id", "security", "detail")
_PLACE = re.compile(r"(\d{1,9}):(\d{1,18})")
_REPLAYS_MAX = 1_000
_FLUSH_S = 15.0
_log = logging.getLogger(__name__)


@app.command("list")
def list_rejected(
    reason: Annotated[str | None, typer.Option("--reason", show_default=False)] = None,
    tenant: TenantOption = None,
    session: Annotated[str | None, typer.Option("--session", show_default=False)] = None,
    security: Annotated[bool, typer.Option("--security", help="Security relevant ones only.")] = False,
    limit: LimitOption = 50,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """List refused records, the newest first."""
    rows = clickhouse(data).rows(
        "SELECT *, concat(toString(source_partition), ':', toString(source_offset)) AS place FROM v_rejected "
        "WHERE ({reason:String} = '' OR reason = {reason:String}) "
        "AND ({tenant:String} = '' OR tenant_id = {tenant:String}) "
        "AND ({session:String} = '' OR session_id = {session:String}) AND ({security:UInt8} = 0 OR security) "
        "ORDER BY appended_at DESC, source_partition, source_offset DESC LIMIT {limit:UInt32}",
        reason=reason or "",
        tenant=tenant or "",
        session=session or "",
        security=int(security),
        limit=limit,
    )
    show_rows(rows, as_json=as_json, columns=_COLUMNS)


def _at(source: ClickHouse, place: str) -> Row:
    match = _PLACE.fullmatch(place)
    if match is None:
        raise Invalid("invalid_value", f"{place!r} is no PARTITION:OFFSET")
    rows = source.rows(
        "SELECT appended_at, reason, detail, security, tenant_id, session_id, event_id, event_type, service_id, "
        "source_topic, source_partition, source_offset, base64Encode(key) AS key_base64, "
        "base64Encode(value) AS value_base64, mapApply((k, v) -> (k, base64Encode(v)), headers) AS headers_base64 "
        "FROM rejected FINAL WHERE source_partition = {partition:UInt32} AND source_offset = {offset:UInt64}",
        partition=int(match[1]),
        offset=int(match[2]),
    )
    if not rows:
        raise NotFound(f"no record at {place} was refused, as far as ClickHouse knows")
    return rows[0]


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


@app.command("show")
def show_rejected(place: PlaceArgument, data: DataOption = None, as_json: JsonOption = False) -> None:
    """Show one refused record with its key, headers and, where it can be read, its event."""
    row = _at(clickhouse(data), place)
    row["key"] = (_bytes(row["key_base64"]) or b"").decode(errors="backslashreplace")
    row["headers"] = {
        name: base64.b64decode(value).decode(errors="backslashreplace")
        for name, value in row.pop("headers_base64").items()
    }
    try:
        event = Decoder().decode_event(_bytes(row["value_base64"]))
        row["event"] = (
            {"envelope": event.envelope._asdict(), "payload": event.payload._asdict()}
            if isinstance(event, Event)
            else "tick"
        )
    except DecodeError as error:
        row["event"] = str(error)
    show_object(row, as_json=as_json)


@app.command("replay")
def replay_rejected(
    places: Annotated[list[str], typer.Argument(help="PARTITION:OFFSET, one or more.")],
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send refused records again, as they were. The judge decides anew.

    Of use where the cause is gone: an unknown schema after an upgrade, a session that is known by now. A record whose
    sequence number was counted when it was refused is a duplicate the second time.
    """
    if len(places) > _REPLAYS_MAX:
        raise Invalid("invalid_value", f"at most {_REPLAYS_MAX} records at a time")
    source = clickhouse(data)
    rows = [(place, _at(source, place)) for place in places]
    show_rows(_sent_again(kafka_settings(data), rows), as_json=as_json)


def _sent_again(settings: KafkaSettings, rows: list[tuple[str, Row]]) -> list[Row]:
    from confluent_kafka import KafkaError, Message, Producer

    producer = Producer(
        {**settings.client_config(), "partitioner": "murmur2_random", "enable.idempotence": True},
        logger=_log,
    )
    sent: dict[str, Row] = {}
    for place, row in rows:

        def delivered(error: KafkaError | None, message: Message, place: str = place) -> None:
            if error is None:
                sent[place] = {"replayed": place, "as": f"{message.partition()}:{message.offset()}"}

        headers: list[tuple[str, str | bytes | None]] = [
            (name, base64.b64decode(value)) for name, value in row["headers_base64"].items()
        ]
        headers.append(("replayed_from", json.dumps(f"{row['source_topic']}:{place}")))
        producer.produce(
            settings.topics.events,
            _bytes(row["value_base64"]),
            _bytes(row["key_base64"]),
            headers=headers,
            on_delivery=delivered,
        )
    producer.flush(_FLUSH_S)
    if len(sent) < len(rows):
        raise Unavailable(
            f"Kafka at {settings.bootstrap_servers} acknowledged {len(sent)} of {len(rows)} records", _FLUSH_S
        )
    return [sent[place] for place, _ in rows]


__all__ = ["app"]
