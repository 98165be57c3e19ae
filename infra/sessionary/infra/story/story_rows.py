"""A session's rows in ClickHouse."""

from typing import Final, NamedTuple

from sessionary.infra.clickhouse_client import ClickHouseClient, Row
from sessionary.infra.kpi.integrity import LATE_S

_OF_SESSION: Final = "WHERE tenant_id = {tenant:String} AND session_id = {session:String}"
_EVENTS: Final = f"""
SELECT source_partition, source_offset, appended_at, occurred_at, event_type, agent_id, service_id, producer_id,
    event_id, step_id, payload_json
FROM history FINAL
{_OF_SESSION} AND event_type != 'heartbeat'
    AND source_offset >= {{from:UInt64}} AND appended_at >= {{since:DateTime64(6)}}
ORDER BY source_offset LIMIT {{limit:UInt32}}
"""
_OUTCOMES: Final = f"""
SELECT source_partition, source_offset, appended_at, kind, event_type, from_state, to_state, reason_code, reason,
    due_at, fired_at
FROM audit FINAL
{_OF_SESSION} AND source_offset >= {{from:UInt64}} AND appended_at >= {{since:DateTime64(6)}}
ORDER BY source_offset, source_n LIMIT {{limit:UInt32}}
"""
_BEATS: Final = f"""
SELECT producer_id, appended_at FROM history FINAL
{_OF_SESSION} AND event_type = 'heartbeat'
ORDER BY source_offset LIMIT {{limit:UInt32}}
"""
_FINDINGS: Final = (
    "SELECT fault, rows FROM v_integrity WHERE tenant_id = {tenant:String} AND session_id = {session:String}"
)
_PLACES: Final = f"""
SELECT source_partition AS partition, min(source_offset) AS first, max(source_offset) AS last
FROM
(
    SELECT source_partition, source_offset FROM history {_OF_SESSION}
    UNION ALL
    SELECT source_partition, source_offset FROM audit {_OF_SESSION}
)
GROUP BY partition
"""
# From the transaction before these offsets to the one after them: one that is missing lies between.
_TIMES: Final = """
WITH
    (SELECT maxIf(number, last_offset < {first:Int64}) FROM batches WHERE partition = {partition:UInt32}) AS before,
    (SELECT minIf(number, first_offset > {last:Int64}) FROM batches WHERE partition = {partition:UInt32}) AS after
SELECT
    if(before = 0, 0, toUnixTimestamp(toDateTime(min(started_at)))) AS since,
    if(after = 0, 4291747200, toUnixTimestamp(toDateTime(max(started_at))) + 1) AS until
FROM batches
WHERE partition = {partition:UInt32} AND number >= before AND (after = 0 OR number <= after)
"""
# Offsets of the dead letters of other sinks are not the events'.
_PARTITION_FINDINGS: Final = """
SELECT fault, rows, partition, first_offset, last_offset
FROM {between}.v_integrity_between(
    from = toDateTime({since}, 'UTC'), to = toDateTime({until}, 'UTC'), late_s = {late_s})
WHERE tenant_id = '' AND partition = {{partition:UInt32}}
    AND (fault = 'history_dead_letters' OR fault NOT LIKE '%dead_letters')
    AND (first_offset IS NULL OR first_offset <= {{last:Int64}})
    AND (last_offset IS NULL OR last_offset >= {{first:Int64}})
ORDER BY fault, first_offset
"""


class StoryRows(NamedTuple):
    """Rows of `history` without heartbeats, and of `audit`, in the log's order.

    `is_cut`: there may be later rows.
    """

    events: list[Row]
    outcomes: list[Row]
    is_cut: bool


def fetch_story(
    source: ClickHouseClient, tenant: str, session: str, limit: int, *, since: str = "1970-01-01", first: int = 0
) -> StoryRows:
    """Return a session's rows from the offset `first` and the time `since` on.

    At most `limit` of each; events and outcomes end at the same offset. Raises as
    `ClickHouseClient` does.
    """
    names: dict[str, str | int | float | None] = {"tenant": tenant, "session": session, "limit": limit}
    names |= {"since": since, "from": first}
    found = source.fetch_rows(_EVENTS, **names), source.fetch_rows(_OUTCOMES, **names)
    # Beyond the end of one kind, an event would lack its outcome, or an outcome its event.
    ends = [rows[-1]["source_offset"] for rows in found if len(rows) >= limit]
    if not ends:
        return StoryRows(*found, is_cut=False)
    events, outcomes = ([row for row in rows if row["source_offset"] <= min(ends)] for rows in found)
    return StoryRows(events, outcomes, is_cut=True)


def fetch_heartbeats(source: ClickHouseClient, tenant: str, session: str, limit: int) -> list[Row]:
    """Return process and time of a session's heartbeats. Raises as `ClickHouseClient` does."""
    return source.fetch_rows(_BEATS, tenant=tenant, session=session, limit=limit)


def fetch_findings(source: ClickHouseClient, tenant: str, session: str) -> list[Row]:
    """Return the findings of `v_integrity` in a session's audit trail; none if all is well.

    Raises as `ClickHouseClient` does.
    """
    return source.fetch_rows(_FINDINGS, tenant=tenant, session=session)


def fetch_partition_findings(source: ClickHouseClient, tenant: str, session: str) -> list[Row]:
    """Return `v_integrity`'s findings in the session's partition between its first and last record.

    A missing row names no session: it may belong to this session, or to another whose records lie
    between. Raises as `ClickHouseClient` does.
    """
    found: list[Row] = []
    for place in source.fetch_rows(_PLACES, tenant=tenant, session=session):
        time = source.fetch_one(_TIMES, **place)
        question = _PARTITION_FINDINGS.format(
            between=source.between, since=time["since"], until=time["until"], late_s=LATE_S
        )
        found += source.fetch_rows(question, **place)
    return found
