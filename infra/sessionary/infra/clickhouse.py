"""A small ClickHouse client over HTTP for the command line: rows as JSON, values bound on the server's side.

The sinks use ClickHouse's own driver; a person's query needs neither its speed nor its second of start-up.
"""

import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Mapping
from typing import Any

from sessionary.schemas.errors import Invalid, SettingsError, Unavailable
from sessionary.schemas.settings import ClickHouseSettings

# A row or value as it comes from JSON.
Json = Any
Row = dict[str, Json]

_RETRY_AFTER_S = 2.0
_OPTIONS = {
    "output_format_json_quote_64bit_integers": "0",
    "output_format_json_quote_denormals": "0",
    "date_time_output_format": "iso",
}


def _parameter(value: str | int | float | None) -> str:
    # ClickHouse reads parameters in its TSV escapes.
    if value is None:
        return "\\N"
    return str(value).replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n")


class ClickHouse:
    """One database of one server. Blocks; thread-safe, as each request is a connection of its own.

    Every method raises `Unavailable` where the server does not answer, `Invalid("invalid_value")` where it refuses the
    statement, `SettingsError` where it refuses the user.
    """

    def __init__(self, settings: ClickHouseSettings, timeout_s: float = 60.0) -> None:
        """Opens nothing yet."""
        self._settings = settings
        self._timeout_s = timeout_s

    @property
    def database(self) -> str:
        """The database that unqualified names stand for."""
        return self._settings.clickhouse_database

    def rows(self, sql: str, **parameters: str | int | float | None) -> list[Row]:
        """Run a query that changes nothing, return its rows; `{name:Type}` is bound to the parameter of that name."""
        bound = {f"param_{name}": _parameter(value) for name, value in parameters.items()}
        options = {**_OPTIONS, **bound, "readonly": "2", "default_format": "JSONEachRow"}
        # A column of bytes need not be UTF-8; whoever needs the bytes asks for base64Encode of it.
        answer = self._post(sql.encode(), options).decode(errors="replace")
        try:
            rows = [json.loads(line) for line in answer.split("\n") if line]
        except ValueError:
            rows = [None]
        if not all(isinstance(row, dict) for row in rows):
            raise Invalid("invalid_value", "the answer does not consist of rows: leave FORMAT out of the statement")
        return rows

    def one(self, sql: str, **parameters: str | int | float | None) -> Row:
        """Run a query that gives one row."""
        (row,) = self.rows(sql, **parameters)
        return row

    def command(self, sql: str) -> None:
        """Run a statement without rows."""
        self._post(sql.encode(), {})

    def insert(self, table: str, rows: Iterable[Mapping[str, Json]]) -> None:
        """Insert rows given as column → value."""
        lines = "\n".join(json.dumps(row) for row in rows)
        if lines:
            self._post(f"INSERT INTO {table} FORMAT JSONEachRow\n{lines}\n".encode(), {"async_insert": "0"})

    def ping(self) -> str:
        """Return the server's version; needs no database."""
        return self._post(b"SELECT version()", {"default_format": "TSV"}, database="default").decode().strip()

    def _post(self, body: bytes, options: Mapping[str, str], database: str | None = None) -> bytes:
        settings = self._settings
        query = urllib.parse.urlencode({"database": database or settings.clickhouse_database, **options})
        request = urllib.request.Request(f"{settings.clickhouse_url}/?{query}", data=body, method="POST")
        request.add_header("X-ClickHouse-User", settings.clickhouse_user)
        request.add_header("X-ClickHouse-Key", settings.clickhouse_password.get_secret_value())
        try:
            with urllib.request.urlopen(request, timeout=self._timeout_s) as response:
                answer: bytes = response.read()
                return answer
        except urllib.error.HTTPError as error:
            with error:
                text = error.read().decode(errors="replace").strip()
            raise self._refusal(error.code, text) from None
        except (OSError, http.client.HTTPException) as error:
            cause = error.reason if isinstance(error, urllib.error.URLError) else error
            why = (cause.strerror if isinstance(cause, OSError) else None) or cause
            raise Unavailable(
                f"ClickHouse at {settings.clickhouse_url} does not answer ({why}): start it, or name the stack by "
                "--data or SESSIONARY_CLICKHOUSE_URL",
                _RETRY_AFTER_S,
            ) from None

    def _refusal(self, status: int, text: str) -> Exception:
        first = text.splitlines()[0] if text else f"status {status}"
        if status in (401, 403):
            return SettingsError(f"ClickHouse refuses user {self._settings.clickhouse_user!r}: {first}")
        if status in (502, 503, 504):
            return Unavailable(f"ClickHouse at {self._settings.clickhouse_url}: {first}", _RETRY_AFTER_S)
        return Invalid("invalid_value", f"ClickHouse: {first}")


__all__ = ["ClickHouse", "Json", "Row"]
