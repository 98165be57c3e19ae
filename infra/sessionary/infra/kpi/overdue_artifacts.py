"""Asks ClickHouse how many artifacts should have been marked as deleted, and are not."""

from typing import Final

from sessionary.infra.clickhouse_client import ClickHouseClient
from sessionary.schemas.settings import ClickHouseSettings

_TIMEOUT_S: Final = 30.0
# What a sweep of yesterday would have marked.
_QUERY: Final = """
SELECT count() AS overdue FROM v_artifacts
WHERE state IN ('open', 'complete')
    AND (time <= now64(3, 'UTC') - toIntervalDay({days:UInt16} + 1) OR personal_expires <= now64(3, 'UTC'))
SETTINGS max_execution_time = {timeout_s:UInt16}
"""


def ask_overdue_artifacts(settings: ClickHouseSettings, days: int) -> int:
    """Return how many artifacts expired a day ago or earlier, `days` after their last event.

    Those that are marked do not count. Blocks for up to 30 s. Raises what `ClickHouseClient`
    raises.
    """
    client = ClickHouseClient(settings, _TIMEOUT_S + 1)
    return int(client.fetch_one(_QUERY, days=days, timeout_s=round(_TIMEOUT_S))["overdue"])
