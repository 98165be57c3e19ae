"""`sessionary topics apply`, `db migrate` and `db rights`: the set-up that the roles need."""

import json
import re
import shlex
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import typer

from sessionary.infra.cli.options import DataOption, JsonOption, clickhouse_client, kafka_settings
from sessionary.infra.cli.output import print_line, print_message
from sessionary.infra.cli.tables import show_object, show_rows
from sessionary.infra.clickhouse_client import ClickHouseClient
from sessionary.infra.environment import (
    DEFAULT_DATA,
    client_environment,
    make_signing_keys,
    stack_environment,
    stack_is_running,
)
from sessionary.schemas.errors import Invalid
from sessionary.stream_processors.settings import SIGNING_KEYS_FILE

# `sessionary env`: the variables of a local stack, for a shell or a program.


class ShellName(StrEnum):
    """A shell, by the way in which it sets a variable."""

    SH = "sh"
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def env_command(
    shell: Annotated[
        ShellName, typer.Option("--shell", help="The shell whose syntax the lines have.", case_sensitive=False)
    ] = ShellName.SH,
    tenant: Annotated[
        str | None,
        typer.Option("--tenant", help="Tenant of SESSIONARY_API_TOKEN. Default: the first.", show_default=False),
    ] = None,
    data: Annotated[
        Path, typer.Option("--data", help="Folder of the stack.", file_okay=False, show_default=True)
    ] = DEFAULT_DATA,
    as_json: JsonOption = False,
) -> None:
    """Print the variables that a shell needs to work with a local stack, secrets too.

    In sh, bash and zsh: eval "$(sessionary env)". In fish: sessionary env --shell fish | source.
    The variables belong to the folder, so they are the same after a restart of the stack.
    """
    environ = client_environment(data, tenant)
    if as_json:
        show_object(environ, as_json=True)
    else:
        for line in shell_lines(environ, shell):
            print_line(line)
    if not stack_is_running(data):
        print_message(f"the stack of {data} is not running; start it: sessionary up --data {data}")


def shell_lines(environ: Mapping[str, str], shell: ShellName) -> list[str]:
    """Return lines that set and export the variables, one line for each."""
    if shell is ShellName.FISH:
        return [f"set -gx {name} {_quote_for_fish(value)};" for name, value in environ.items()]
    return [f"export {name}={shlex.quote(value)}" for name, value in environ.items()]


def _quote_for_fish(value: str) -> str:
    # In single quotes, fish reads no other escapes than these two.
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


# Grants and row policies of one tenant's user of ClickHouse, as statements.
#
# Views run with the caller's rights, so a policy on each table holds for every view over it. Tables
# without a tenant (transactions, dead letters, settings) are not granted. Nor is one that operators
# write for each other: it has a policy all the same, for a user with wider rights.


_USER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
_TABLES: Final = (
    "SELECT DISTINCT table AS found FROM system.columns WHERE database = currentDatabase() AND name = 'tenant_id' "
    "AND table IN (SELECT name FROM system.tables WHERE database = currentDatabase() AND engine LIKE '%MergeTree') "
    "ORDER BY found"
)
_OPERATORS: Final = frozenset({"dismissed_faults"})
_VIEWS: Final = (
    "SELECT concat(database, '.', name) AS place FROM system.tables "
    "WHERE database IN (currentDatabase(), {between:String}) AND engine = 'View' ORDER BY place"
)


class RowPolicy(NamedTuple):
    """The part of one table that one tenant may read."""

    table: str
    condition: str


def tenant_policies(source: ClickHouseClient, tenant: str) -> list[RowPolicy]:
    """Return the policy of each table that has rows of tenants. Raises as the client does."""
    quoted = tenant.replace("\\", "\\\\").replace("'", "\\'")
    return [RowPolicy(str(row["found"]), f"tenant_id = '{quoted}'") for row in source.fetch_rows(_TABLES)]


def tenant_rights(source: ClickHouseClient, tenant: str, user: str) -> list[str]:
    """Return statements that let a user read one tenant's rows, and no others; each can run twice.

    All policies come before the first grant. Raises `Invalid` for a name that is no user's, and as
    the client does.
    """
    if not _USER.fullmatch(user):
        raise Invalid("invalid_value", f"{user!r} is no user: letters, digits, '_', '.' and '-', a letter first")
    policies = tenant_policies(source, tenant)
    if not policies:
        raise Invalid("invalid_value", f"database {source.database} has no tables; run: sessionary db migrate")
    granted = [policy.table for policy in policies if policy.table not in _OPERATORS]
    views = [str(row["place"]) for row in source.fetch_rows(_VIEWS, between=source.between)]
    database, name = source.database, f"`{user} reads {re.sub('[^A-Za-z0-9_.-]', '_', tenant)}`"
    return [
        *(
            f"CREATE ROW POLICY OR REPLACE {name} ON {database}.{table} FOR SELECT USING {condition} TO `{user}`"
            for table, condition in policies
        ),
        *(f"GRANT SELECT ON {each} TO `{user}`" for each in [*(f"{database}.{table}" for table in granted), *views]),
    ]


def apply_topics_command(
    replication_factor: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=9,
            help="Replicas of each partition. Default: those of the existing topics; else one per broker, at most 3.",
            show_default=False,
        ),
    ] = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create missing topics and correct settings that differ. Prints one row per change.

    The command can be repeated at any time: it changes nothing if all topics are correct. It
    neither moves replicas nor adds partitions. If the topics have another replication factor, it
    prints the file for Kafka's own tool, says how to use it, and exits with 5. If
    SESSIONARY_SIGNING_KEYS_FILE names a file that does not exist, it makes one with a new key.
    """
    from sessionary.infra.topics import ReplicationDiffers, apply_topics

    keys = stack_environment(data).get(SIGNING_KEYS_FILE)
    if keys is not None and make_signing_keys(Path(keys)):
        print_message(
            f"{keys} was made, with a new signing key: copy it to the host of every processor and every worker of "
            "quotas, and to no client"
        )
    try:
        applied = apply_topics(kafka_settings(data), replication_factor)
    except ReplicationDiffers as error:
        print_line(json.dumps(error.plan))
        raise
    if applied.changes:
        show_rows([{"change": change} for change in applied.changes], as_json=as_json)
    else:
        print_message(f"all topics are up to date, with replication factor {applied.replication_factor}")
    if applied.replication_factor < min(3, applied.brokers):
        print_message(
            f"the cluster has {applied.brokers} brokers, but a partition has {applied.replication_factor} replica(s): "
            f"sessionary topics apply --replication-factor {min(3, applied.brokers)} says how to change that"
        )


def migrate_command(data: DataOption = None, as_json: JsonOption = False) -> None:
    """Create the database, apply missing migrations, and set the retention of rows by the settings.

    Recreates views that differ from those of this release. Prints one row per changed migration,
    view and setting. The command can be repeated at any time: it changes nothing if the database
    is up to date. A database migrated by a newer release is refused.
    """
    from sessionary.sinks.clickhouse.migrate import apply_migrations, apply_retention
    from sessionary.sinks.settings import RetentionSettings

    settings = RetentionSettings.from_env(stack_environment(data))
    applied = apply_migrations(settings, print_message) + apply_retention(settings, print_message)
    if not applied:
        print_message("the database is up to date")
        return
    show_rows([{"applied": name} for name in applied], as_json=as_json)


def rights_command(
    tenant: Annotated[str, typer.Argument(help="Tenant whose rows may be read.")],
    user: Annotated[str, typer.Option("--user", help="An existing user of ClickHouse.")],
    data: DataOption = None,
) -> None:
    """Print statements that grant a ClickHouse user the rows of one tenant, and no others.

    Run them as a ClickHouse administrator, and again after each migration: a new table has no
    policy and no grant yet.
    """

    for statement in tenant_rights(clickhouse_client(data), tenant, user):
        print_line(f"{statement};")


# `sessionary alerts render`: alert rules for Prometheus.


def render_command(
    thresholds: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="TOML file with the differing thresholds; see alerts.toml."),
    ] = None,
) -> None:
    """Print the alert rules as YAML.

    Save the rules as a file that `rule_files` of Prometheus names. docs/runbook.md explains alerts.
    """
    from sessionary.infra.alerts.render import render_rules
    from sessionary.infra.alerts.thresholds import read_thresholds

    print_line(render_rules(read_thresholds(thresholds)).rstrip("\n"))
