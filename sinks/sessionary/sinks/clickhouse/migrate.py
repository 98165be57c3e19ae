"""A database's tables and views, brought to this release by an explicit command.

Sinks only check the tables. `schema_migrations` has a checksum of each migration that was applied.
A migration is applied once, and again from its start if it was interrupted. `schema_views` has each
view that was made, with the hash of the server's definition. A view is recreated if its file, any
view or table that it uses, or its definition differs. Views are noted once all are made: if one
fails, the next run makes them again. Views that others made are neither replaced nor dropped.
"""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from graphlib import TopologicalSorter
from importlib.metadata import version
from importlib.resources import files
from typing import Final, NamedTuple

from clickhouse_connect.driver.client import Client

from sessionary.schemas.settings import ClickHouseSettings
from sessionary.sinks.clickhouse.connection import connect, query_rows, run_statement
from sessionary.sinks.core.outcomes import fill_outcomes
from sessionary.sinks.errors import OperatorError
from sessionary.sinks.settings import RetentionSettings

# The SQL files of this release: tables, numbered migrations and views.
#
#     tables/*.sql              the tables as release 0.2.0 makes them: all of them are migration 1
#     migrations/NNNN_name.sql  changes of them, from 0002 on
#     views/v_name.sql          a plain view with its comments
#     views/between/v_name.sql  a view with parameters, in the database {database}_between
#
# Statements end with `;` at the end of a line and name the database as `{database}`. Each of them
# can run twice. The materialized view that feeds a table stands with the tables: if it were
# replaced, the rows would be missing that sinks insert meanwhile.


_NAME: Final = re.compile(r"(\d{4})_(\w+)")
_COMMENT: Final = re.compile(r"^\s*--.*$", re.MULTILINE)
_FOLDER: Final = files("sessionary.sinks.clickhouse")
# Tools list all that a database has, and fail at a view that needs parameters: these views have a
# database of their own. Its name follows from that of the pipeline's, so no two pipelines share it.
_BETWEEN: Final = "between."
_USED: Final = re.compile(r"\{database\}[._](between\.\w+|\w+)")
# In place of `{is_first_judged}`, in a query over all deliveries of the events that it has.
#
# Each event that was judged and not rejected counts once. A late rejection counts too: rejections
# are looked up when the view is read. The first judged delivery of an event counts: a later one,
# after an applied or rejected one, is a duplicate without a record. The rejections that are listed
# by name left the number free for a later delivery, as do those of another session, whose record
# only claims to belong to this one.
_IS_FIRST_JUDGED: Final = """((source_partition, source_offset, appended_at) NOT IN
        (SELECT source_partition, source_offset, toDateTime64(appended_at, 3, 'UTC') FROM {database}.rejected)
        AS is_kept)
    AND countIf(is_kept OR (source_partition, source_offset, appended_at, tenant_id, session_id) IN
    (
        SELECT
            source_partition, source_offset, toDateTime64(appended_at, 3, 'UTC'),
            toString(tenant_id), toString(session_id)
        FROM {database}.rejected
        WHERE tenant_id IS NOT NULL AND session_id IS NOT NULL AND reason NOT IN ('unknown_session', 'wrong_partition',
            'late_filler', 'producer_conflict', 'too_many_producers', 'session_archived')
    )) OVER (PARTITION BY tenant_id, session_id, producer_id, producer_seq ORDER BY source_offset
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) = 0"""


def _split_statements(sql: str, database: str) -> list[str]:
    parts = re.split(r";[ \t]*(?:\n|$)", sql.replace("{database}", database))
    return [part.strip() for part in parts if part.strip()]


def _hash_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


class Migration(NamedTuple):
    """A step of the tables."""

    version: int
    name: str
    sql: str

    @property
    def label(self) -> str:
        """Its number and name, as its file is named."""
        return f"{self.version:04d}_{self.name}"

    @property
    def checksum(self) -> str:
        """SHA-256 of its text, hex."""
        return _hash_text(self.sql)

    def statements(self, database: str) -> list[str]:
        """Return the statements for `database`, in order."""
        return _split_statements(self.sql, database)


class View(NamedTuple):
    """A plain view; the name of one with parameters begins with `between.`.

    The checksum is that of its text, of the views that it uses and of the last migration: the
    server keeps the columns' types in a view, so each migration recreates the view.
    """

    name: str
    sql: str
    checksum: str

    def statements(self, database: str) -> list[str]:
        """Return the statements for `database`, in order."""
        return _split_statements(self.sql, database)


class Schema(NamedTuple):
    """All that a release has: migrations by their numbers, each view after those that it uses."""

    release: str
    migrations: tuple[Migration, ...]
    views: tuple[View, ...]


def _read_files(folder: str) -> dict[str, str]:
    """Return the texts of SQL files by their names without the suffix, sorted."""
    found = sorted((path for path in _FOLDER.joinpath(folder).iterdir()), key=lambda path: path.name)
    return {path.name.removesuffix(".sql"): path.read_text("utf-8") for path in found if path.name.endswith(".sql")}


def shipped_migrations() -> list[Migration]:
    """Return this release's migrations in the order of their numbers; each number is used once."""
    later = [
        Migration(int(match[1]), match[2], sql)
        for name, sql in _read_files("migrations").items()
        if (match := _NAME.fullmatch(name))
    ]
    return [Migration(1, "tables", "\n".join(_read_files("tables").values())), *later]


def shipped_schema() -> Schema:
    """Return this release's schema. Raises `graphlib.CycleError` if views use each other."""
    migrations = shipped_migrations()
    between = {f"{_BETWEEN}{name}": fill_outcomes(sql) for name, sql in _read_files("views/between").items()}
    texts = {
        name: sql.replace("{is_first_judged}", _IS_FIRST_JUDGED)
        for name, sql in (_read_files("views") | between).items()
    }
    views = order_views(texts, migrations[-1].checksum)
    return Schema(version("sessionary"), tuple(migrations), views)


def order_views(texts: Mapping[str, str], tables: str) -> tuple[View, ...]:
    """Return views by their names, each after those that it uses; always the same order.

    `texts` holds SQL by the views' names, `tables` the last migration's checksum. Raises
    `graphlib.CycleError`, a `ValueError`, if views use each other.
    """
    uses = {
        name: sorted({*_USED.findall(_COMMENT.sub("", sql))} & {*texts} - {name}) for name, sql in sorted(texts.items())
    }
    ordered: dict[str, View] = {}
    for name in TopologicalSorter(uses).static_order():
        parts = (texts[name], *(ordered[used].checksum for used in uses[name]), tables)
        ordered[name] = View(name, texts[name], _hash_text("\n".join(parts)))
    return tuple(ordered.values())


# How long rows are kept for which no law says it: settings, applied as the tables' TTL.


_HISTORY_TTL: Final = """ALTER TABLE {database}.history MODIFY TTL
    toDateTime(retain_until) DELETE WHERE retention_class NOT IN ('default', 'idle'),
    toDateTime(appended_at) + INTERVAL {history} DAY DELETE WHERE retention_class = 'default',
    least(toDateTime(retain_until), toDateTime(appended_at) + INTERVAL {idle} DAY) DELETE
        WHERE retention_class = 'idle',
    toDateTime(appended_at) + INTERVAL 1 DAY RECOMPRESS CODEC(ZSTD(1))"""
# A refusal marks its row of history for as long as that can live: eight years, or by the setting.
_REFUSALS_TTL: Final = (
    "ALTER TABLE {database}.rejected MODIFY TTL toDateTime(appended_at) + INTERVAL greatest(2923, {history} + 1) DAY"
)
_BATCHES_TTL: Final = (
    "ALTER TABLE {database}.batches MODIFY TTL toDateTime(started_at) + INTERVAL {batches} DAY",
    "ALTER TABLE {database}.batch_acknowledgements MODIFY TTL toDateTime(acknowledged_at) + INTERVAL {batches} DAY",
)
_RUNS_TTL: Final = """ALTER TABLE {database}.run_events MODIFY TTL
    least(toDateTime(retain_until), toDateTime(appended_at) + INTERVAL 30 DAY) DELETE WHERE subject = 'tool_call',
    toDateTime(retain_until) DELETE WHERE subject = 'artifact',
    least(toDateTime(retain_until), toDateTime(appended_at) + INTERVAL {runs} DAY) DELETE
        WHERE subject NOT IN ('tool_call', 'artifact'),
    toDateTime(appended_at) + INTERVAL 1 DAY RECOMPRESS CODEC(ZSTD(1))"""
# By the names of `retention_days`: the statements to run if one of them differs.
_STATEMENTS: Final = {
    "history": (_HISTORY_TTL, _REFUSALS_TTL),
    "idle": (_HISTORY_TTL,),
    "batches": _BATCHES_TTL,
    "runs": (_RUNS_TTL,),
}
_DEFAULTS: Final = RetentionSettings().days  # as the migration makes the tables


def apply_retention(settings: RetentionSettings, progress: Callable[[str], None] = lambda _: None) -> list[str]:
    """Change the tables' TTL to the settings where it differs; return a sentence for each change.

    Call it after `apply_migrations`. Calls `progress` before each statement. ClickHouse deletes in
    the background. Blocks. Idempotent. Raises `Transient`, `OperatorError`.
    """
    database, wanted = settings.clickhouse_database, settings.days
    client = connect(settings)
    try:
        rows = query_rows(client, f"SELECT table_name, days FROM {database}.retention_days FINAL")
        applied = _DEFAULTS | {str(name): int(days) for name, days in rows}
        changed = {name: days for name, days in wanted.items() if applied[name] != days}
        for template in dict.fromkeys(template for name in changed for template in _STATEMENTS[name]):
            statement = template.format(database=database, **wanted)
            progress(f"changing what is kept: {statement.partition(' MODIFY')[0]}")
            run_statement(client, statement)
        # Noted last: after a crash in between, the statements run again.
        for name, days in changed.items():
            run_statement(client, f"INSERT INTO {database}.retention_days (table_name, days) VALUES ('{name}', {days})")
    finally:
        client.close()
    return [f"{name} is kept for {days} days, no longer for {applied[name]}" for name, days in changed.items()]


class MadeView(NamedTuple):
    """A view that sessionary made; the hashes are empty while it is made."""

    checksum: str
    definition: str
    release: str
    is_dropped: bool


class ViewPlan(NamedTuple):
    """How the views of a database become those of a release: those to make, and those to drop."""

    make: tuple[View, ...]
    drop: tuple[str, ...]


def pending_migrations(
    database: str, applied: Sequence[tuple[int, str]], shipped: Sequence[Migration]
) -> list[Migration]:
    """Return the migrations to be applied; `applied` holds (version, checksum).

    Versions that are not shipped come from a newer release and are ignored. Raises
    `OperatorError` if the tables have an older form, or an applied file has changed since.
    """
    known = dict(applied)
    for migration in shipped:
        if known.get(migration.version, migration.checksum) == migration.checksum:
            continue
        if migration.version == 1:
            raise OperatorError(
                "older_form",
                f"the tables of database {database} are older than release 0.2.0, and nothing migrates them: "
                "use another database, or drop this one; nothing was changed",
            )
        raise OperatorError("migration_changed", f"migration {migration.label} differs from the one that was applied")
    return [migration for migration in shipped if migration.version not in known]


def newer_release(applied: Sequence[tuple[int, str]], made: Mapping[str, MadeView], schema: Schema) -> str | None:
    """Return which release has migrated the database if it is newer than `schema`'s, else None."""
    newest = max((view.release for view in made.values()), key=_release_key, default=schema.release)
    if _release_key(newest) > _release_key(schema.release):
        return f"release {newest}"
    own = {migration.version for migration in schema.migrations}
    return "a newer release" if any(number not in own for number, _ in applied) else None


def _release_key(release: str) -> tuple[int, ...]:
    """Return the numbers that a release begins with; a candidate counts as its release."""
    match = re.match(r"\d+(?:\.\d+)*", release)
    return tuple(int(number) for number in match[0].split(".")) if match else ()


def plan_views(
    database: str, views: Sequence[View], made: Mapping[str, MadeView], found: Mapping[str, str]
) -> ViewPlan:
    """Return which views to make, in order, and which to drop.

    `found` holds the hash of the definition of each table and view in both databases. Raises
    `OperatorError` if one that sessionary did not make has the name of a view. What the database of
    views with parameters has is sessionary's: it stays if the other one is dropped.
    """
    ours = {name: view for name, view in made.items() if not view.is_dropped}
    others = {name for name in found if name not in ours and not name.startswith(_BETWEEN)}
    if foreign := sorted(view.name for view in views if view.name in others):
        raise OperatorError(
            "foreign_view",
            f"sessionary did not make {', '.join(foreign)} of database {database}: "
            "rename it, then run sessionary db migrate; nothing was changed",
        )
    return ViewPlan(
        tuple(
            view
            for view in views
            if view.name not in ours or ours[view.name][:2] != (view.checksum, found.get(view.name, ""))
        ),
        tuple(sorted(ours.keys() - {view.name for view in views})),
    )


def _rows_if_there(client: Client, sql: str) -> list[tuple[object, ...]]:
    try:
        return query_rows(client, sql)
    except OperatorError as error:
        if error.reason not in ("no_table", "no_database"):
            raise
        return []


def _read_applied(client: Client, database: str) -> list[tuple[int, str]]:
    rows = _rows_if_there(client, f"SELECT version, checksum FROM {database}.schema_migrations FINAL ORDER BY version")
    return [(int(str(number)), str(checksum)) for number, checksum in rows]


def _read_made(client: Client, database: str) -> dict[str, MadeView]:
    sql = f"SELECT name, checksum, definition, release, is_dropped FROM {database}.schema_views FINAL"
    return {
        str(name): MadeView(str(checksum), str(definition), str(release), bool(is_dropped))
        for name, checksum, definition, release, is_dropped in _rows_if_there(client, sql)
    }


def _read_definitions(client: Client, database: str) -> dict[str, str]:
    """Return a hash of each table's and view's definition, without the database's name."""
    own = f"replaceAll(replaceAll(create_table_query, '{database}.', ''), '{database}_between.', '')"
    rows = query_rows(
        client,
        f"SELECT if(database = '{database}', name, concat('{_BETWEEN}', name)), lower(hex(SHA256({own}))) "
        f"FROM system.tables WHERE database IN ('{database}', '{database}_between')",
    )
    return {str(name): str(definition) for name, definition in rows}


def apply_migrations(settings: ClickHouseSettings, progress: Callable[[str], None] = lambda _: None) -> list[str]:
    """Create the databases, bring them to this release and return the changes.

    Returns the names of migrations and views, none if the database is up to date. Calls `progress`
    with a line before each step. Blocks. Idempotent, but two processes must not run it at once.
    Raises `Transient`, `OperatorError`; a database that it refuses is not changed.
    """
    database, schema = settings.clickhouse_database, shipped_schema()
    client = connect(settings)
    try:
        run_statement(client, f"CREATE DATABASE IF NOT EXISTS {database}")
        applied, made = _read_applied(client, database), _read_made(client, database)
        todo = pending_migrations(database, applied, schema.migrations)
        if newer := newer_release(applied, made, schema):
            raise OperatorError(
                "newer_database",
                f"{newer} has migrated database {database}, and this is release {schema.release}: "
                "use the newer one; nothing was changed",
            )
        plan = plan_views(database, schema.views, made, _read_definitions(client, database))
        run_statement(client, f"CREATE DATABASE IF NOT EXISTS {database}_between")
        for migration in todo:
            progress(f"applying {migration.label} to {database}")
            for statement in migration.statements(database):
                run_statement(client, statement)
            run_statement(
                client,
                f"INSERT INTO {database}.schema_migrations (version, name, checksum) "
                f"VALUES ({migration.version}, '{migration.name}', '{migration.checksum}')",
            )
        _change_views(client, database, plan, schema.release, progress)
    finally:
        client.close()
    return [
        *(migration.label for migration in todo),
        *(view.name for view in plan.make),
        *(f"{name} dropped" for name in plan.drop),
    ]


def _change_views(client: Client, database: str, plan: ViewPlan, release: str, progress: Callable[[str], None]) -> None:
    # Noted before the first one is made: after a crash they are ours, and differ.
    _note_views(client, database, {view.name: MadeView("", "", release, is_dropped=False) for view in plan.make})
    for view in plan.make:
        progress(f"making {_place(database, view.name)}")
        for statement in view.statements(database):
            run_statement(client, statement)
    for name in plan.drop:
        progress(f"dropping {_place(database, name)}, which this release does not have")
        run_statement(client, f"DROP VIEW IF EXISTS {_place(database, name)}")
    definitions = _read_definitions(client, database) if plan.make else {}
    made = {view.name: MadeView(view.checksum, definitions[view.name], release, is_dropped=False) for view in plan.make}
    _note_views(client, database, made | {name: MadeView("", "", release, is_dropped=True) for name in plan.drop})


def _place(database: str, name: str) -> str:
    return f"{database}{'_' if name.startswith(_BETWEEN) else '.'}{name}"


def _note_views(client: Client, database: str, views: Mapping[str, MadeView]) -> None:
    if not views:
        return
    rows = ", ".join(
        f"('{name}', '{view.checksum}', '{view.definition}', '{view.release}', {view.is_dropped})"
        for name, view in views.items()
    )
    columns = "name, checksum, definition, release, is_dropped"
    run_statement(client, f"INSERT INTO {database}.schema_views ({columns}) VALUES {rows}")


def check_client_database(client: Client, database: str) -> None:
    """Raise `OperatorError` if `database` lacks a migration, `Transient` on faults that pass.

    It checks no view, because sinks need none. Migrations of a newer release are right.
    """
    if todo := pending_migrations(database, _read_applied(client, database), shipped_migrations()):
        names = ", ".join(migration.label for migration in todo)
        raise OperatorError("not_migrated", f"database {database} lacks {names}; run: sessionary db migrate")


def check_migrations(settings: ClickHouseSettings) -> None:
    """Raise `OperatorError` if the database lacks a migration, or its views differ.

    Views that a newer release made are right. Opens a connection and blocks. Raises `Transient` on
    faults that pass.
    """
    database, schema = settings.clickhouse_database, shipped_schema()
    client = connect(settings)
    try:
        check_client_database(client, database)
        made = _read_made(client, database)
        if newer_release(_read_applied(client, database), made, schema):
            return
        plan = plan_views(database, schema.views, made, _read_definitions(client, database))
    finally:
        client.close()
    if names := ", ".join([*(view.name for view in plan.make), *plan.drop]):
        raise OperatorError("not_migrated", f"views of database {database} differ: {names}; run: sessionary db migrate")
