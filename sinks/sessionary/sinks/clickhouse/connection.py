"""One way to a ClickHouse client, for sinks and migrations alike."""

from typing import Any
from urllib.parse import urlsplit

import clickhouse_connect
from clickhouse_connect.driver.client import Client

from sessionary.schemas.errors import SettingsError
from sessionary.schemas.settings import ClickHouseSettings
from sessionary.sinks.errors import OperatorError, Transient, classify

_CONNECT_TIMEOUT_S = 5


def connect(settings: ClickHouseSettings, timeout_s: int = 60) -> Client:
    """Open a client that names no database: every statement names its own. Blocks; not thread-safe.

    Raises `Transient`, `OperatorError`; `SettingsError` for a URL that is none.
    """
    url = urlsplit(settings.clickhouse_url)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise SettingsError(f"SESSIONARY_CLICKHOUSE_URL: {settings.clickhouse_url!r} is not http(s)://host:port")
    try:
        return clickhouse_connect.get_client(
            interface=url.scheme,
            host=url.hostname,
            port=url.port or (8443 if url.scheme == "https" else 8123),
            username=settings.clickhouse_user,
            password=settings.clickhouse_password.get_secret_value(),
            database="default",
            connect_timeout=_CONNECT_TIMEOUT_S,
            send_receive_timeout=timeout_s,
            compress=False,
            # A session would forbid two statements at once, and waits out its time-out after a crash.
            autogenerate_session_id=False,
            # Retries are the sink's own, with its back-off and its metrics.
            query_retries=0,
        )
    except Exception as error:  # the driver does not wrap all of its transport; classified, never swallowed
        raise classified(error) from error


def rows_of(client: Client, sql: str, parameters: dict[str, Any] | None = None) -> list[tuple[Any, ...]]:
    """Return a query's rows. Raises `Transient`, `OperatorError`."""
    try:
        return [tuple(row) for row in client.query(sql, parameters=parameters).result_rows]
    except Exception as error:  # as above
        raise classified(error) from error


def command(client: Client, sql: str) -> None:
    """Run one statement without a result. Raises `Transient`, `OperatorError`."""
    try:
        client.command(sql)
    except Exception as error:  # as above
        raise classified(error) from error


def classified(error: Exception) -> Transient | OperatorError:
    """Return `error` itself where it is classified already, else its class."""
    return error if isinstance(error, Transient | OperatorError) else classify(error)


__all__ = ["classified", "command", "connect", "rows_of"]
