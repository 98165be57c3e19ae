"""A small ClickHouse client over HTTP for commands: rows as JSON, values bound by the server.

The sinks use ClickHouse's own driver. A command does without it, because loading it takes a second.
"""

import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sessionary.schemas.errors import Invalid, SettingsError, Unavailable
from sessionary.schemas.http.proxies import open_url, proxy_note
from sessionary.schemas.settings import ClickHouseSettings
from sessionary.schemas.tls import context_for

# A value, and a row, as decoded from JSON.
Json = Any
Row = dict[str, Json]

_RETRY_AFTER_S = 2.0
_CHUNK_BYTES = 1 << 16
_OPTIONS = {
    "output_format_json_quote_64bit_integers": "0",
    "output_format_json_quote_denormals": "0",
    "date_time_output_format": "iso",
}


def _encode_parameter(value: str | int | float | None) -> str:
    # ClickHouse reads parameters in its TSV escapes.
    if value is None:
        return "\\N"
    return str(value).replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n")


class ClickHouseClient:
    """One database of one server. Every method blocks. Thread-safe.

    Every method raises `Unavailable` if the server does not answer, `Invalid("invalid_value")` if
    it refuses the statement, `SettingsError` if it refuses the user.
    """

    def __init__(self, settings: ClickHouseSettings, timeout_s: float = 60.0) -> None:
        """Connect to nothing yet. `timeout_s` bounds each request.

        Raises `SettingsError` if the file of authorities cannot be read.
        """
        self._settings = settings
        authority = settings.clickhouse_ca_location
        self._tls = context_for(settings.clickhouse_url, "SESSIONARY_CLICKHOUSE_CA_LOCATION", authority)
        self._timeout_s = timeout_s

    @property
    def database(self) -> str:
        """The database of unqualified table names."""
        return self._settings.clickhouse_database

    @property
    def between(self) -> str:
        """The database of the views with parameters, `v_…_between`."""
        return self._settings.between_database

    def fetch_rows(self, sql: str, **parameters: str | int | float | None) -> list[Row]:
        """Run a read-only query and return its rows; `parameters` are bound to `{name:Type}`."""
        bound = {f"param_{name}": _encode_parameter(value) for name, value in parameters.items()}
        options = {**_OPTIONS, **bound, "readonly": "2", "default_format": "JSONEachRow"}
        # A column of bytes need not be UTF-8; select base64Encode(column) to get the bytes.
        answer = self._post_request(sql.encode(), options).decode(errors="replace")
        try:
            rows = [json.loads(line) for line in answer.split("\n") if line]
        except ValueError:
            rows = [None]
        if not all(isinstance(row, dict) for row in rows):
            raise Invalid("invalid_value", "the answer is not JSON rows: remove FORMAT from the statement")
        return rows

    def iter_rows(self, sql: str, output_format: str) -> Iterator[bytes]:
        """Run a read-only query and yield pieces of its rows, in a format of ClickHouse's.

        JSON has no text that is not UTF-8: what is none is replaced.
        """
        valid = {"output_format_json_validate_utf8": "1"}
        options = {**_OPTIONS, **valid, "readonly": "2", "default_format": output_format}
        return self._iter_answer(sql.encode(), options)

    def fetch_one(self, sql: str, **parameters: str | int | float | None) -> Row:
        """Run a read-only query that gives exactly one row, and return that row."""
        (row,) = self.fetch_rows(sql, **parameters)
        return row

    def execute(self, sql: str) -> None:
        """Run a statement that returns no rows."""
        self._post_request(sql.encode(), {})

    def insert_rows(self, table: str, rows: Iterable[Mapping[str, Json]]) -> None:
        """Insert rows given as `{column: value}`."""
        lines = "\n".join(json.dumps(row) for row in rows)
        if lines:
            self._post_request(f"INSERT INTO {table} FORMAT JSONEachRow\n{lines}\n".encode(), {"async_insert": "0"})

    def server_version(self) -> str:
        """Return the server's version; needs no database."""
        return self._post_request(b"SELECT version()", {"default_format": "TSV"}, database="default").decode().strip()

    def _post_request(self, body: bytes, options: Mapping[str, str], database: str | None = None) -> bytes:
        return b"".join(self._iter_answer(body, options, database))

    def _iter_answer(self, body: bytes, options: Mapping[str, str], database: str | None = None) -> Iterator[bytes]:
        settings = self._settings
        query = urllib.parse.urlencode({"database": database or settings.clickhouse_database, **options})
        request = urllib.request.Request(f"{settings.clickhouse_url}/?{query}", data=body, method="POST")
        request.add_header("X-ClickHouse-User", settings.clickhouse_user)
        request.add_header("X-ClickHouse-Key", settings.clickhouse_password.get_secret_value())
        try:
            with open_url(request, self._timeout_s, self._tls) as answer:
                while chunk := answer.read(_CHUNK_BYTES):
                    yield chunk
                if answer.length:  # reading in chunks does not say that the connection ended early
                    raise ConnectionError(f"its answer ended {answer.length} bytes early")
        except urllib.error.HTTPError as error:
            with error:
                text = error.read().decode(errors="replace").strip()
            raise self._response_error(error.code, text) from None
        except (OSError, http.client.HTTPException) as error:
            cause = error.reason if isinstance(error, urllib.error.URLError) else error
            via = proxy_note(settings.clickhouse_url)
            why = (cause.strerror if isinstance(cause, OSError) else None) or cause
            raise Unavailable(
                f"ClickHouse at {settings.clickhouse_url}{via} does not answer ({why}): start it, or name another one "
                "by --data or SESSIONARY_CLICKHOUSE_URL",
                _RETRY_AFTER_S,
            ) from None

    def _response_error(self, status: int, text: str) -> Exception:
        first = text.splitlines()[0] if text else f"status {status}"
        via = proxy_note(self._settings.clickhouse_url)
        if status in (401, 403):
            return SettingsError(f"ClickHouse{via} refuses user {self._settings.clickhouse_user!r}: {first}")
        if status in (407, 502, 503, 504):
            return Unavailable(f"ClickHouse at {self._settings.clickhouse_url}{via}: {first}", _RETRY_AFTER_S)
        return Invalid("invalid_value", f"ClickHouse{via if status == 405 else ''}: {first}")
