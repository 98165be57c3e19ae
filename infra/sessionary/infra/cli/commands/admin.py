"""`sessionary topics apply`, `db migrate` and `db rights`: what must be there before the roles."""

from typing import Annotated

import typer

from sessionary.infra.cli.options import DataOption, JsonOption, clickhouse_client, kafka_settings
from sessionary.infra.cli.output import print_line, print_message
from sessionary.infra.cli.tables import show_rows
from sessionary.infra.environment import stack_environment


def apply_topics_command(
    replication_factor: Annotated[
        int, typer.Option(min=1, max=9, help="Replication factor of the topics that are created.")
    ] = 1,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create missing topics and correct settings that differ. Prints one row per change.

    You can run it again at any time: it changes nothing if all topics are correct.
    """
    from sessionary.infra.topics import apply_topics

    changes = apply_topics(kafka_settings(data), replication_factor)
    if not changes:
        print_message("all topics are up to date")
        return
    show_rows([{"change": change} for change in changes], as_json=as_json)


def migrate_command(data: DataOption = None, as_json: JsonOption = False) -> None:
    """Create the database, apply the missing migrations, and keep rows as long as the settings say.

    Makes the views anew that differ from those of this release. Prints one row per migration, view
    and setting that it changed. You can run it again at any time: it changes nothing if the
    database is up to date. It refuses a database that a newer release has migrated.
    """
    from sessionary.sinks.clickhouse.migrate import apply_migrations
    from sessionary.sinks.clickhouse.retention import apply_retention
    from sessionary.sinks.settings import RetentionSettings

    settings = RetentionSettings.from_env(stack_environment(data))
    applied = apply_migrations(settings, print_message) + apply_retention(settings, print_message)
    if not applied:
        print_message("the database is up to date")
        return
    show_rows([{"applied": name} for name in applied], as_json=as_json)


def rights_command(
    tenant: Annotated[str, typer.Argument(help="Tenant whose rows may be read.")],
    user: Annotated[str, typer.Option("--user", help="User of ClickHouse; it must be there.")],
    data: DataOption = None,
) -> None:
    """Print statements that let a user of ClickHouse read one tenant's rows, and no others.

    Run them as an administrator of ClickHouse, and again after each migration: a new table has no
    policy yet, and is not granted either.
    """
    from sessionary.infra.governance.row_policies import tenant_rights

    for statement in tenant_rights(clickhouse_client(data), tenant, user):
        print_line(f"{statement};")
