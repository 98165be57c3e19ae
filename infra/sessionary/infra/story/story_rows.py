"""A session's rows in ClickHouse."""

from typing import Final, NamedTuple

from sessionary.infra.clickhouse_client import ClickHouseClient, Row

_OF_SESSION: Final = "WHERE tenant_id = {tenant:String} AND session_id = {session:String}"
_EVENTS: Final = f"""
SELECT source_partition, source_offset, appended_at, occurred_at, event_type, agent_id, service_id, producer_id,
    step_id, payload_json
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


class StoryRows(NamedTuple):
    """Rows of `history` without heartbeats, and of `audit`, in the log's order.

    `is_cut`: there may be later ones.
    """

    events: list[Row]
    outcomes: list[Row]
    is_cut: bool


def fetch_story(
    source: ClickHouseClient, tenant: str, session: str, limit: int, *, since: str = "1970-01-01", first: int = 0
) -> StoryRows:
    """Return a session's rows from the offset `first` and the time `since` on.

    At most `limit` of each; events and outcomes end at the same offset. Raises what
    `ClickHouseClient` raises.
    """
    names: dict[str, str | int | float | None] = {"tenant": tenant, "session": session, "limit": limit}
    names |= {"since": since, "from": first}
    found = source.fetch_rows(_EVENTS, **names), source.fetch_rows(_OUTCOMES, **names)
    # Beyond the end of one kind, an event would lack what became of it, or an outcome its event.
    ends = [rows[-1]["source_offset"] for rows in found if len(rows) >= limit]
    if not ends:
        return StoryRows(*found, is_cut=False)
    events, outcomes = ([row for row in rows if row["source_offset"] <= min(ends)] for rows in found)
    return StoryRows(events, outcomes, is_cut=True)


def fetch_heartbeats(source: ClickHouseClient, tenant: str, session: str, limit: int) -> list[Row]:
    """Return process and time of a session's heartbeats. Raises what `ClickHouseClient` raises."""
    return source.fetch_rows(_BEATS, tenant=tenant, session=session, limit=limit)


def fetch_findings(source: ClickHouseClient, tenant: str, session: str) -> list[Row]:
    """Return what `v_integrity` finds in a session's rows; nothing if all is well.

    Raises what `ClickHouseClient` raises.
    """
    return source.fetch_rows(_FINDINGS, tenant=tenant, session=session)


__all__ = ["StoryRows", "fetch_findings", "fetch_heartbeats", "fetch_story"]
