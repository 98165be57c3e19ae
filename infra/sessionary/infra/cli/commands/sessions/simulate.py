"""`sessionary session simulate`: what one other result would have changed, by the same rules."""

import json
from pathlib import Path
from typing import Annotated

import typer

from sessionary.infra.cli.commands.sessions.lookup import SessionArgument, find_session
from sessionary.infra.cli.errors import NotFound
from sessionary.infra.cli.options import DataOption, JsonOption, TenantOption, clickhouse_client, kafka_settings
from sessionary.infra.cli.output import print_line, print_message, wants_json
from sessionary.infra.cli.tables import show_object
from sessionary.schemas.errors import Invalid
from sessionary.schemas.ids import SessionKey, given_session_id

_FIRST_S, _BATCH_S = 3.0, 30.0  # longest waits for Kafka


def simulate_command(
    session: SessionArgument,
    replace: Annotated[
        str,
        typer.Option(
            "--replace",
            metavar="EVENT=FILE",
            help="The event, by id or offset, and a file with its other result as JSON.",
            show_default=False,
        ),
    ],
    tenant: TenantOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Fold a session's log with another result in one event, and print what differs first.

    The result is that of a tool call, a step, a run or an agent's task, the content of an update,
    or the text of a message. With --tenant the log alone is asked, else ClickHouse finds the
    tenant. Nothing is changed: the fold is in memory.
    """
    from sessionary.producers.control.kafka_record import KafkaRecords
    from sessionary.producers.errors import SessionLost
    from sessionary.producers.replay.errors import PointNotFound
    from sessionary.producers.replay.simulate import simulate

    event, equals, name = replace.partition("=")
    if not equals or not event or not name:
        raise Invalid("invalid_value", f"--replace is {replace!r}: use EVENT=FILE, such as 42=result.json")
    try:
        result = json.loads(Path(name).read_text("utf-8"))
    except ValueError as error:
        raise Invalid("invalid_value", f"{name} is no JSON: {error}; write a text in quotes") from None
    if tenant is None:
        found = find_session(clickhouse_client(data), session, None)
        key = SessionKey(f"{found['tenant_id']}", f"{found['session_id']}")
    else:
        key = SessionKey(tenant, given_session_id(tenant, session).session_id)
    try:
        outcome = simulate(KafkaRecords(kafka_settings(data), _FIRST_S), key, event, result, _BATCH_S)
    except (SessionLost, PointNotFound) as error:
        raise NotFound(f"{error}") from error
    if wants_json(as_json):
        first = None if outcome.first is None else outcome.first._asdict()
        show_object({**outcome._asdict(), "first": first}, as_json=True)
        return
    print_message(f"session {key.session_id}: {outcome.events:,} events folded with the other result of {event}")
    print_line(f"{outcome.first}" if outcome.first is not None else "no difference")
    print_message(f"{outcome.rows_differing:,} rows differ at the end")
