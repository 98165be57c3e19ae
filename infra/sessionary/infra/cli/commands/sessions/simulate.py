"""`sessionary session simulate`: what one other result would have changed, by the same rules."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from sessionary.infra.cli.commands.sessions.lookup import SessionArgument, find_session, is_whole_id, session_start
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
    or the text of a message. With --tenant and a whole id the log alone is asked, else
    ClickHouse finds the session. Nothing is changed: the fold is in memory.
    """
    from sessionary.producers.control.kafka_record import KafkaRecords
    from sessionary.producers.errors import SessionLost
    from sessionary.producers.replay.errors import PointNotFound
    from sessionary.producers.replay.simulate import simulate

    event, result = _parse_replacement(replace)
    if tenant is None or (session_start(session) and not is_whole_id(session)):
        found = find_session(clickhouse_client(data), session, tenant)
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


def _parse_replacement(text: str) -> tuple[str, Any]:
    """Return the event and its other result. Raises `Invalid`, and `NotFound` without a file."""
    event, _, name = text.partition("=")
    if not event or not name:
        raise Invalid("invalid_value", f"--replace is {text!r}: use EVENT=FILE, such as 42=result.json")
    asked = f"--replace {text}: {name}"
    try:
        return event, json.loads(Path(name).read_text("utf-8"))
    except FileNotFoundError:
        raise NotFound(f"{asked} does not exist; write the other result into it, as JSON") from None
    except OSError as error:
        raise Invalid(
            "invalid_value", f"{asked} cannot be read ({error.strerror}); name a file with the other result as JSON"
        ) from None
    except (ValueError, RecursionError) as error:
        raise Invalid("invalid_value", f"{asked} is no JSON ({error}); write a text in quotes") from None
