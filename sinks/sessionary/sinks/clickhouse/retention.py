"""How long rows are kept for which no law says it: settings, applied as the tables' TTL."""

from collections.abc import Callable
from typing import Final

from sessionary.sinks.clickhouse.connection import connect, query_rows, run_statement
from sessionary.sinks.settings import RetentionSettings

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
# By the names of `retention_days`: what to run if one of them differs.
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
