"""Grants and row policies of one tenant's user of ClickHouse, as statements.

Views run with the rights of who asks, so a policy on each table is one on every view over it.
Tables without a tenant (transactions, dead letters, settings) are not granted.
"""

import re
from typing import Final, NamedTuple

from sessionary.infra.clickhouse_client import ClickHouseClient
from sessionary.schemas.errors import Invalid

_USER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
_TABLES: Final = (
    "SELECT DISTINCT table AS found FROM system.columns WHERE database = currentDatabase() AND name = 'tenant_id' "
    "AND table IN (SELECT name FROM system.tables WHERE database = currentDatabase() AND engine LIKE '%MergeTree') "
    "ORDER BY found"
)
_VIEWS: Final = "SELECT name FROM system.tables WHERE database = currentDatabase() AND engine = 'View' ORDER BY name"


class RowPolicy(NamedTuple):
    """What one tenant may read of one table."""

    table: str
    condition: str


def tenant_policies(source: ClickHouseClient, tenant: str) -> list[RowPolicy]:
    """Return the policy of each table that has rows of tenants. Raises as the client does."""
    quoted = tenant.replace("\\", "\\\\").replace("'", "\\'")
    return [RowPolicy(str(row["found"]), f"tenant_id = '{quoted}'") for row in source.fetch_rows(_TABLES)]


def tenant_rights(source: ClickHouseClient, tenant: str, user: str) -> list[str]:
    """Return statements that let a user read one tenant's rows, and no others; each can run twice.

    All policies come before the first grant. Raises `Invalid` for a name that is no user's, and
    what the client raises.
    """
    if not _USER.fullmatch(user):
        raise Invalid("invalid_value", f"{user!r} is no user: letters, digits, '_', '.' and '-', a letter first")
    policies = tenant_policies(source, tenant)
    if not policies:
        raise Invalid("invalid_value", f"database {source.database} has no tables; run: sessionary db migrate")
    views = [str(row["name"]) for row in source.fetch_rows(_VIEWS)]
    database, name = source.database, f"`{user} reads {re.sub('[^A-Za-z0-9_.-]', '_', tenant)}`"
    return [
        *(
            f"CREATE ROW POLICY OR REPLACE {name} ON {database}.{table} FOR SELECT USING {condition} TO `{user}`"
            for table, condition in policies
        ),
        *(f"GRANT SELECT ON {database}.{each} TO `{user}`" for each in [*(p.table for p in policies), *views]),
    ]
