"""Asks ClickHouse how full its disks are."""

from typing import Final, NamedTuple

from sessionary.infra.clickhouse_client import ClickHouseClient
from sessionary.schemas.settings import ClickHouseSettings

_TIMEOUT_S: Final = 5.0
# A disk without an end, such as a store of objects, has no share that is free.
_QUERY: Final = """
SELECT name, free_space / total_space AS free_ratio
FROM system.disks
WHERE total_space > 0 AND total_space < 1e18
ORDER BY name
"""


class DiskSpace(NamedTuple):
    """A disk of ClickHouse, and the share of it that is free."""

    disk: str
    free_ratio: float


def ask_disk_space(settings: ClickHouseSettings) -> tuple[DiskSpace, ...]:
    """Return the disks. Blocks for up to 5 s. Raises what `ClickHouseClient` raises."""
    rows = ClickHouseClient(settings, _TIMEOUT_S).fetch_rows(_QUERY)
    return tuple(DiskSpace(row["name"], row["free_ratio"]) for row in rows)
