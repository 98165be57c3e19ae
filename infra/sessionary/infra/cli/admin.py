"""`sessionary topics apply` and `sessionary db migrate`: what must stand before the roles start."""

from typing import Annotated

import typer

from sessionary.infra.cli.options import DataOption, JsonOption, clickhouse_settings, kafka_settings
from sessionary.infra.cli.output import remark, show_rows

topics_app = typer.Typer(no_args_is_help=True, help="Bring the topics to what they should be.")
db_app = typer.Typer(no_args_is_help=True, help="Bring the tables in ClickHouse to what they should be.")


@topics_app.callback()
def _topics() -> None:
    """Keep `apply` a command of its own name: a group of one command would swallow it."""


@db_app.callback()
def _db() -> None:
    """Keep `migrate` a command of its own name."""


@topics_app.command("apply")
def apply_topics_command(
    replication_factor: Annotated[int, typer.Option(min=1, max=9, help="Of topics that are created.")] = 1,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create missing topics and set what differs; harmless to repeat. Prints a row per change."""
    from sessionary.infra.topics import apply_topics

    changes = apply_topics(kafka_settings(data), replication_factor)
    if not changes:
        remark("all topics are as they should be")
        return
    show_rows([{"change": change} for change in changes], as_json=as_json)


@db_app.command("migrate")
def migrate(data: DataOption = None, as_json: JsonOption = False) -> None:
    """Make the database and bring it to this version; harmless to repeat. Prints a row per migration."""
    from sessionary.sinks.clickhouse.migrate import apply_migrations

    applied = apply_migrations(clickhouse_settings(data), remark)
    if not applied:
        remark("the database is up to date")
        return
    show_rows([{"applied": name} for name in applied], as_json=as_json)


__all__ = ["db_app", "topics_app"]
