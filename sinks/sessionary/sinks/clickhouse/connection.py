"""Connections and statements, for sinks and migrations alike."""

from typing import Any, Final
from urllib.parse import urlsplit

import clickhouse_connect
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError, DataError, Error, OperationalError
from clickhouse_connect.driver.httputil import check_env_proxy, get_pool_manager

from sessionary.schemas.errors import SettingsError
from sessionary.schemas.http.proxies import describe_proxy, is_loopback
from sessionary.schemas.settings import ClickHouseSettings
from sessionary.schemas.tls import trusting_context
from sessionary.sinks.errors import OperatorError, Transient

# The class of the sinks' errors for an exception of the ClickHouse client.


# Codes of ClickHouse's ErrorCodes.cpp. 252 is transient: its other cause, the limit of partitions
# per block, is switched off.
_TRANSIENT: Final = {
    3: "unexpected_end",
    32: "unexpected_end",
    33: "unexpected_end",
    159: "timeout",
    202: "too_many_queries",
    203: "no_free_connection",
    209: "timeout",
    210: "network",
    236: "aborted",
    241: "memory_limit",
    242: "read_only_replica",
    243: "no_space",
    252: "too_many_parts",
    279: "network",
    285: "too_few_replicas",
    286: "quorum",
    319: "unknown_outcome",
    394: "aborted",
    425: "system",
    439: "no_thread",
    473: "deadlock",
    999: "keeper",
    1000: "server",
    1001: "server",
}
_OPERATOR: Final = {
    10: "no_column",
    16: "no_column",
    47: "no_column",
    53: "wrong_type",
    60: "no_table",
    81: "no_database",
    115: "unknown_setting",
    164: "read_only",
    192: "authentication",
    193: "authentication",
    194: "authentication",
    497: "no_right",
    516: "authentication",
}


def classify_error(error: Exception) -> Transient | OperatorError:
    """Return the class of an exception of the ClickHouse client; not meant for encoding errors.

    Returns `error` itself if it is classified already. An unknown code stops the sink: continuing
    could lose rows, stopping loses none.
    """
    if isinstance(error, Transient | OperatorError):
        return error
    text = str(error).strip().splitlines()[0][:500] if str(error).strip() else type(error).__name__
    code = error.code if isinstance(error, Error) else None
    if code is not None:
        if code in _TRANSIENT:
            return Transient(_TRANSIENT[code], text)
        return OperatorError(_OPERATOR.get(code, f"code_{code}"), text)
    if isinstance(error, DataError) or not isinstance(error, ClickHouseError | OSError):
        return OperatorError("client", text)
    if isinstance(error, OperationalError | OSError) or type(error).__name__ == "DatabaseError":
        # Without a code, the answer came from a proxy or a socket, not from ClickHouse.
        return Transient("network", text)
    return OperatorError("client", text)


_CONNECT_TIMEOUT_S = 5


def connect(settings: ClickHouseSettings, timeout_s: int = 60) -> Client:
    """Open a client without a default database: every statement names its own.

    Blocks. The client is not thread-safe. Raises `Transient`, `OperatorError`; `SettingsError`
    for a malformed URL, and for a file of authorities that cannot be read.
    """
    url = urlsplit(settings.clickhouse_url)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise SettingsError(f"SESSIONARY_CLICKHOUSE_URL: {settings.clickhouse_url!r} is not http(s)://host:port")
    if settings.clickhouse_ca_location is not None:
        trusting_context("SESSIONARY_CLICKHOUSE_CA_LOCATION", settings.clickhouse_ca_location)  # else it is found late
    port = url.port or (8443 if url.scheme == "https" else 8123)
    # With a pool of our own the driver asks the environment for no proxy.
    is_direct = is_loopback(url.hostname)
    pool = get_pool_manager(ca_cert=settings.clickhouse_ca_location) if is_direct else None
    try:
        return clickhouse_connect.get_client(
            interface=url.scheme,
            host=url.hostname,
            port=port,
            username=settings.clickhouse_user,
            password=settings.clickhouse_password.get_secret_value(),
            ca_cert=settings.clickhouse_ca_location,
            pool_mgr=pool,
            database="default",
            connect_timeout=_CONNECT_TIMEOUT_S,
            send_receive_timeout=timeout_s,
            compress=False,
            # A session would forbid concurrent statements, and outlives a crash until it times out.
            autogenerate_session_id=False,
            # The sink retries itself, with its own back-off and metrics.
            query_retries=0,
        )
    except Exception as error:  # the driver does not wrap all of its transport; classified, never swallowed
        named = classify_error(error)
        if not is_direct and (proxy := check_env_proxy(url.scheme, url.hostname, port)):
            named.args = (f"{named}{describe_proxy(url.scheme, urlsplit(proxy))}",)
        raise named from error


def query_rows(client: Client, sql: str, parameters: dict[str, Any] | None = None) -> list[tuple[Any, ...]]:
    """Return a query's rows. Raises `Transient`, `OperatorError`."""
    try:
        return [tuple(row) for row in client.query(sql, parameters=parameters).result_rows]
    except Exception as error:  # as above
        raise classify_error(error) from error


def run_statement(client: Client, sql: str) -> None:
    """Run one statement without a result. Raises `Transient`, `OperatorError`."""
    try:
        client.command(sql)
    except Exception as error:  # as above
        raise classify_error(error) from error
