"""Asks ClickHouse how many bytes the largest tenant stores."""

from typing import Final

from sessionary.infra.clickhouse_client import ClickHouseClient
from sessionary.schemas.settings import ClickHouseSettings

_TIMEOUT_S: Final = 30.0
# The layers of `v_stored_bytes` without `state`, whose bytes are in history already. Without FINAL,
# which would read and sort the whole tables: a row that is stored twice counts twice until a merge.
_QUERY: Final = """
SELECT max(bytes) AS bytes
FROM
(
    SELECT tenant, sum(bytes) AS bytes
    FROM
    (
        SELECT toString(tenant_id) AS tenant, sum(toUInt64(value_size)) AS bytes
        FROM history WHERE tenant_id != '' GROUP BY tenant_id
        UNION ALL
        SELECT toString(tenant_id), sum(toUInt64(value_size)) FROM audit WHERE tenant_id != '' GROUP BY tenant_id
        UNION ALL
        SELECT assumeNotNull(toString(tenant_id)), sum(toUInt64(value_size))
        FROM rejected WHERE tenant_id != '' AND retain_until > now64(6) GROUP BY tenant_id
    )
    GROUP BY tenant
)
SETTINGS max_execution_time = {timeout_s:UInt16}
"""


def ask_tenant_bytes_max(settings: ClickHouseSettings) -> int:
    """Return the bytes of the records of the tenant that has most of them; 0 without a tenant.

    Blocks for up to 30 s. Raises what `ClickHouseClient` raises.
    """
    client = ClickHouseClient(settings, _TIMEOUT_S + 1)
    return int(client.fetch_one(_QUERY, timeout_s=round(_TIMEOUT_S))["bytes"])
