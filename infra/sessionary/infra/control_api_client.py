"""A small client of the control API's operators' pages, for commands."""

import json
import time
import urllib.parse
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from sessionary.infra.settings import OperatorSettings
from sessionary.schemas.errors import Invalid, SessionaryError, SettingsError, Unavailable
from sessionary.schemas.http.control_servers import ControlServers, Unanswered
from sessionary.schemas.http.kept_connections import HttpResponse, Request

# A value as decoded from JSON.
Json = Any

_RETRY_AFTER_S = 2.0
_TRIES = 3
_DRY_RUN_S = 620.0  # longer than a processor takes
_PAUSE_S = 1.0
_PAGE_ROWS_MAX = 1_000
_NO_SESSION = ("unknown_session", "session_archived")
_ANSWER_BYTES_MAX = 8 << 20
_TOKEN_ADVICE = "set SESSIONARY_OPERATOR_TOKEN to a token of SESSIONARY_API_TOKENS that has the role operator"


class UnknownPartition(SessionaryError):
    """There is no partition of this number."""


class NothingOpen(Invalid):
    """No request of the session is open."""


class UnknownSession(SessionaryError):
    """The tenant has no such session, or it is archived."""


class ControlApiClient:
    """Partitions and rules of one pipeline, by any of its processors. Every method blocks.

    Every method raises `Unavailable` if no processor answers, `SettingsError` if the URL or the
    token is missing or refused, `Invalid("invalid_value")` if the processor refuses the request.
    """

    def __init__(self, settings: OperatorSettings, timeout_s: float = 20.0) -> None:
        """Connect to nothing yet. `timeout_s` bounds each request."""
        self._settings = settings
        self._timeout_s = timeout_s
        self._servers: ControlServers | None = None  # they know which of them answered last

    def list_partitions(self) -> list[dict[str, Json]]:
        """Return every partition, in order, as the control API describes it."""
        listed: list[dict[str, Json]] = self._send_request("GET", "/v1/partitions")["partitions"]
        return listed

    def retry_partition(self, partition: int) -> dict[str, Json]:
        """Open a halted partition again; return its state after a few seconds.

        Raises `UnknownPartition`, and `Invalid` if it is not halted.
        """
        return self._send_request("POST", f"/v1/partitions/{partition}/retry")

    def list_rules(self) -> dict[str, Json]:
        """Return the rules of every partition and those that each worker knows: a `RulesList`."""
        return self._send_request("GET", "/v1/rules")

    def activate_rules(
        self,
        version: int,
        finished_run_days: int | None = None,
        quotas: bool | None = None,
        session_quotas: bool | None = None,
        resume_ms: int | None = None,
        *,
        token_quotas: bool | None = None,
    ) -> dict[str, Json]:
        """Activate rules; return the `RulesList` after a few seconds.

        `finished_run_days`: days for which runs can be read after their end. `quotas`: whether new
        runs ask for their tenant's quota; `session_quotas`: whether new sessions do;
        `token_quotas`: whether tokens are reported to the quotas. `resume_ms`: time for which a run
        may be resumed after it failed. None leaves a setting as it is in force. Raises `Invalid` if
        a worker does not know the rules, a partition is not open, or quotas are to begin and no
        worker of that role runs.
        """
        found = {"finished_run_days": finished_run_days, "quotas": quotas, "session_quotas": session_quotas}
        found |= {"resume_ms": resume_ms, "token_quotas": token_quotas}
        wanted = {name: value for name, value in found.items() if value is not None}
        return self._send_request("POST", "/v1/rules", {"version": version, **wanted})

    def accept_gap(self, partition: int, reason: str) -> dict[str, Json]:
        """Give up events that were deleted before a halted partition read them; else as a retry."""
        return self._send_request("POST", f"/v1/partitions/{partition}/accept-gap", {"reason": reason})

    def accept_truncation(self, partition: int, reason: str) -> dict[str, Json]:
        """Continue in a log that lost records a halted partition had read; else as a retry."""
        return self._send_request("POST", f"/v1/partitions/{partition}/accept-truncation", {"reason": reason})

    def repair_clock(self, partition: int, reason: str) -> dict[str, Json]:
        """Set a partition's clock that leapt to the broker's time; else as a retry.

        Raises `Invalid` if there is nothing to repair, or while the broker's clock is wrong.
        """
        return self._send_request("POST", f"/v1/partitions/{partition}/repair-clock", {"reason": reason})

    def rebuild_rows(self, partition: int, mode: str, reason: str) -> dict[str, Json]:
        """Rebuild the rows of a halted partition; else as a retry.

        `mode` is refold, accept_rows or accept_topics.
        """
        body = {"mode": mode, "reason": reason}
        return self._send_request("POST", f"/v1/partitions/{partition}/rebuild", body)

    def plan_rebuild(self, partition: int, mode: str) -> dict[str, Json]:
        """Return what a rebuild would change: a `RebuildPlan`. Takes up to 10 minutes."""
        body = {"mode": mode, "dry_run": True, "reason": "a dry run"}
        return self._send_request("POST", f"/v1/partitions/{partition}/rebuild", body, timeout_s=_DRY_RUN_S)

    def skip_records(self, partition: int, offset: int, last_offset: int | None, reason: str) -> dict[str, Json]:
        """Continue after the record at which a partition is halted; else as a retry.

        With `last_offset`, all records up to that offset are skipped. Raises `Invalid` for another
        offset, and names the right one.
        """
        body = {"offset": offset, "to": last_offset, "reason": reason}
        return self._send_request("POST", f"/v1/partitions/{partition}/skip", body)

    def act_on_session(
        self, session_id: str, tenant_id: str, action: str, body: Mapping[str, Json], key: str
    ) -> dict[str, Json]:
        """Send an operator's `pause`, `resume`, `cancel`, `ask-again`, `migrate` or the like.

        Returns the `JudgedEvent`. Repeats the request with its `key` while there is no verdict, so
        that it is judged once. Raises `UnknownSession`, and `Invalid` if the event was rejected.
        """
        path = f"/v1/sessions/{session_id}/{action}?tenant={urllib.parse.quote(tenant_id, safe='')}"
        for left in reversed(range(_TRIES)):
            try:
                return self._send_request("POST", path, body, {"Idempotency-Key": key})
            except Unavailable:
                if not left:
                    raise
                time.sleep(_PAUSE_S)
        raise AssertionError

    def list_waiting(self, tenant_id: str | None, limit: int) -> tuple[list[dict[str, Json]], list[int]]:
        """Return at most `limit` open questions, and the partitions that did not answer."""
        return self._list_rows("/v1/waiting", "waiting", {} if tenant_id is None else {"tenant": tenant_id}, limit)

    def list_open(
        self, tenant_id: str | None, session_id: str | None, limit: int
    ) -> tuple[list[dict[str, Json]], list[int]]:
        """Return at most `limit` sessions with open requests, and the partitions without answer."""
        given = {"tenant": tenant_id, "session_id": session_id}
        query = {name: value for name, value in given.items() if value is not None}
        return self._list_rows("/v1/open-requests", "open_requests", query, limit)

    def _list_rows(
        self, path: str, name: str, query: dict[str, str], limit: int
    ) -> tuple[list[dict[str, Json]], list[int]]:
        found: list[dict[str, Json]] = []
        missing: set[int] = set()
        while True:
            query["limit"] = f"{min(limit - len(found), _PAGE_ROWS_MAX)}"
            page = self._send_request("GET", f"{path}?{urllib.parse.urlencode(query)}")
            found += page[name]
            missing.update(page["missing_partitions"])
            if page["next_cursor"] is None or len(found) >= limit:
                return found, sorted(missing)
            query["cursor"] = page["next_cursor"]

    def _send_request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Json] | None = None,
        more: Mapping[str, str] = MappingProxyType({}),
        timeout_s: float | None = None,
    ) -> dict[str, Json]:
        url, token = self._settings.control_url, self._settings.operator_token
        if url is None:
            raise SettingsError(
                "SESSIONARY_CONTROL_URL is not set: set it to a processor's address, for example "
                "http://127.0.0.1:8600, or name a local stack by --data"
            )
        if token is None:
            raise SettingsError(f"no operator token is set: {_TOKEN_ADVICE}")
        servers = self._servers or ControlServers(url, self._settings.control_ca_location, _ANSWER_BYTES_MAX)
        self._servers = servers
        # A header is sent in latin-1: so the token arrives in UTF-8.
        bearer = f"Bearer {token.get_secret_value()}".encode().decode("latin-1")
        headers = {"Authorization": bearer, "Content-Type": "application/json", **more}
        content = None if method == "GET" else b"" if body is None else json.dumps(body).encode()
        try:
            is_repeatable = method == "GET" or "Idempotency-Key" in more
            answer = servers.send(
                Request(path, headers, content), timeout_s or self._timeout_s, is_repeatable=is_repeatable
            )
        except Unanswered as error:
            raise Unavailable(
                f"no processor answers at {_describe(error)}: start one, or set SESSIONARY_CONTROL_URL to another one",
                _RETRY_AFTER_S,
            ) from None
        except ValueError:  # of the header: its text has the token
            raise SettingsError("SESSIONARY_OPERATOR_TOKEN has characters that no token has") from None
        finally:
            servers.close_idle()
        if answer.status != 200:
            raise _answer_error(f"{answer.url}{answer.via}", answer)
        return _parse_object(f"{answer.url}{answer.via}", answer.body)


def _describe(unanswered: Unanswered) -> str:
    """Return each URL with what it lacks, in the system's words if there are any."""
    return ", ".join(
        f"{url} ({(error.strerror if isinstance(error, OSError) else None) or error})"
        for url, error in unanswered.failures
    )


def _parse_object(url: str, body: bytes) -> dict[str, Json]:
    try:
        found = json.loads(body)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise Invalid("invalid_value", f"{url} is no control API: set SESSIONARY_CONTROL_URL to a processor's address")
    return found


def _answer_error(url: str, answer: HttpResponse) -> Exception:
    """Return the error for a problem document (RFC 9457)."""
    try:
        problem = json.loads(answer.body)
        detail, reason = str(problem["detail"]), str(problem["reason"])
    except (ValueError, KeyError, TypeError):
        detail, reason = f"status {answer.status}", ""
    if answer.status == 401:
        return SettingsError(f"the processor at {url} does not know this token: {_TOKEN_ADVICE}")
    if answer.status == 403:
        return SettingsError(f"the processor at {url}: {detail}; {_TOKEN_ADVICE}")
    if reason == "unknown_partition":
        return UnknownPartition(detail)
    if reason in _NO_SESSION:
        return UnknownSession(detail)
    if reason == "nothing_open":
        return NothingOpen("invalid_value", detail)
    if answer.status == 503:
        return Unavailable(f"the processor at {url}: {detail}", _RETRY_AFTER_S)
    if not reason or reason == "not_found":
        return Invalid("invalid_value", f"{url} has no such page: it is no processor, or one of an older release")
    return Invalid("invalid_value", detail)
