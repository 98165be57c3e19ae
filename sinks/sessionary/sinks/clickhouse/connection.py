"""Connections and statements, for sinks and migrations alike."""

from typing import Any
from urllib.parse import urlsplit

import clickhouse_connect
from clickhouse_connect.driver.client import Client

from sessionary.schemas.errors import SettingsError
from sessionary.schemas.settings import ClickHouseSettings
from sessionary.schemas.tls import trusting_context
from sessionary.sinks.clickhouse.error_classes import classify_error

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
    try:
        return clickhouse_connect.get_client(
            interface=url.scheme,
            host=url.hostname,
            port=url.port or (8443 if url.scheme == "https" else 8123),
            username=settings.clickhouse_user,
            password=settings.clickhouse_password.get_secret_value(),
            ca_cert=settings.clickhouse_ca_location,
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
        raise classify_error(error) from error


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
