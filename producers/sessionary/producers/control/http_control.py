"""The control API over HTTP, with the standard library.

Each wait is bounded; refused connections and answers such as 503 are retried.
"""

import json
import time
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar, get_args

from sessionary.producers.errors import AuthenticationFailed, Invalid, RunGone, SessionLost, SettingsError, Unavailable
from sessionary.producers.ports import (
    AgentMember,
    ChangedSession,
    KnownSession,
    SessionChanges,
    SessionView,
    TaskFilter,
    TaskPart,
    TaskQuestion,
    TaskView,
    Verdict,
)
from sessionary.producers.run_ports import LOG_END, HeldBy, MigrationView
from sessionary.producers.settings import ProducerSettings
from sessionary.schemas import types
from sessionary.schemas.http.control_servers import ControlServers, Unanswered
from sessionary.schemas.http.kept_connections import HttpResponse, OpenResponse, Request
from sessionary.schemas.ids import partition_of_task
from sessionary.schemas.types import DataClass, ErrorInfo, Limits, Rejection

_WAIT_MS_MAX = 10_000
_RETRY_S_MAX = 1.0
_ANSWER_BYTES_MAX = 32 << 20  # 200 turns of 16 Ki characters that JSON escapes
_NETWORK_MARGIN_S = 2.0
_UNKNOWN_RECORDS = frozenset({"unknown_run", "unknown_step", "unknown_call", "no_such_point"})
_GONE = "run_gone"
_DIFFERS = "state_differs"
T = TypeVar("T")


class RecordUnknown(SessionLost):
    """The tenant's session has no such run, step or tool call."""


class HttpControl:
    """`Control`, `SessionPolls` and `TaskLookup` by the processor's HTTP API. Thread-safe."""

    def __init__(self, settings: ProducerSettings, tenant_id: str | None = None) -> None:
        """Connect to nothing. Raises `SettingsError` if the file of authorities cannot be read.

        `tenant_id`: the client's; a token of another tenant raises `AuthenticationFailed`.
        """
        self._token = settings.api_token
        self._tenant_id = tenant_id
        urls = settings.control_url
        self._servers = None if urls is None else ControlServers(urls, settings.control_ca_location, _ANSWER_BYTES_MAX)

    @property
    def url(self) -> str | None:
        """The URL of the server that answered last, or is asked first; None if none is set."""
        return None if self._servers is None else self._servers.url

    def check_configured(self) -> None:
        """Raise `SettingsError` if no URL is set."""
        if self.url is None:
            raise SettingsError(
                "SESSIONARY_CONTROL_URL is not set: resume, recover, sync, attach, open and a session_id of your own "
                "need the control API, for example http://127.0.0.1:8600"
            )

    def close_idle(self) -> None:
        """Close the connections that wait for the next question."""
        if self._servers is not None:
            self._servers.close_idle()

    def fetch_session(self, session_id: str, after: tuple[int, int] | None, timeout_s: float) -> SessionView:
        """Ask until there is an answer or `timeout_s` is over.

        Raises `SessionLost`, `AuthenticationFailed`, `Invalid`, `Unavailable`, `SettingsError`.
        """
        document = self.fetch_document(session_id, after, timeout_s, f"session {session_id}")
        return self.parse_document(document, parse_session, "a session")

    def fetch_document(
        self,
        path: str,
        after: tuple[int, int] | None,
        timeout_s: float,
        about: str,
        parameters: Mapping[str, str] = MappingProxyType({}),
    ) -> dict[str, Any]:
        """Return the JSON object at `path` below `/v1/sessions/`, once `after` is judged.

        `about` names it in errors; `parameters` are the page's own. Asks until there is an answer
        or `timeout_s` is over. Raises as `fetch_session` does; `RecordUnknown` if only the run,
        step or call is unknown.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            left_s = max(deadline - time.monotonic(), 0.0)
            try:
                return self._fetch_once(path, after, left_s, about, parameters)
            except Unavailable as error:
                pause_s = min(error.retry_after_s, _RETRY_S_MAX)
                if time.monotonic() + pause_s >= deadline:
                    raise
                time.sleep(pause_s)

    def fetch_runs(self, filters: Mapping[str, str], timeout_s: float) -> dict[str, Any]:
        """Return a part of the list of the tenant's runs, as `GET /v1/runs` gives it. Asks once.

        `filters`: the page's parameters. Raises as `poll_sessions` does.
        """
        query = {**filters, **self.tenant_query()}
        request = self._new_request(f"runs?{urllib.parse.urlencode(query)}")
        body = self._read_answer(request, timeout_s, "the list of runs")
        return self.parse_document({"body": body}, lambda found: dict(json.loads(found["body"])), "a list of runs")

    def parse_document(self, document: dict[str, Any], parse: Callable[[dict[str, Any]], T], what: str) -> T:
        """Return the parsed document. Raises `Unavailable` if it is not `what`."""
        try:
            return parse(document)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Unavailable(f"control API at {self.url} sent an answer that is not {what}: {error!r}", 1.0) from None

    def _fetch_once(
        self, path: str, after: tuple[int, int] | None, left_s: float, about: str, parameters: Mapping[str, str]
    ) -> dict[str, Any]:
        query = {**parameters, "wait_ms": str(min(int(left_s * 1000), _WAIT_MS_MAX))}
        if after is not None:
            query["after"] = "end" if after == LOG_END else f"{after[0]}:{after[1]}"
        query |= self.tenant_query()
        request = self._new_request(f"sessions/{path}?{urllib.parse.urlencode(query)}")
        wait_s = min(left_s, _WAIT_MS_MAX / 1000) + _NETWORK_MARGIN_S
        body = self._read_answer(request, wait_s, about)
        try:
            document = json.loads(body)
        except ValueError as error:
            raise Unavailable(f"control API at {self.url} sent an answer that is no JSON: {error!r}", 1.0) from None
        if not isinstance(document, dict):
            raise Unavailable(f"control API at {self.url} sent an answer that is no JSON object", 1.0)
        return document

    def poll_sessions(self, known: Sequence[KnownSession], timeout_s: float) -> SessionChanges:
        """Ask once about many sessions.

        Raises `AuthenticationFailed`, `Invalid`, `Unavailable`, `SettingsError`.
        """
        body = json.dumps({"tenant": self._tenant_id, "sessions": list(map(_known_document, known))}).encode()
        request = self._new_request("sessions/poll", body)
        try:
            answer = self._read_answer(request, timeout_s, "the poll of sessions")
        except SessionLost:
            raise Unavailable(f"control API at {self.url} knows no polls: upgrade the processors", 60.0) from None
        try:
            return parse_changes(json.loads(answer))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Unavailable(
                f"control API at {self.url} sent an answer that is not one to a poll: {error!r}", 1.0
            ) from None

    def fetch_task(self, task_id: str, timeout_s: float, question: TaskQuestion) -> TaskView | None:
        """Ask until there is an answer or `timeout_s` is over; None if there is no such task.

        Raises `RunGone` if it vanished; `AuthenticationFailed`, `Invalid`, `Unavailable`,
        `SettingsError`.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                return self._fetch_task_once(task_id, max(deadline - time.monotonic(), 0.0), question)
            except RunGone:
                raise
            except SessionLost:
                return None
            except Unavailable as error:
                pause_s = min(error.retry_after_s, _RETRY_S_MAX)
                if time.monotonic() + pause_s >= deadline:
                    raise
                time.sleep(pause_s)

    def fetch_tasks(self, wanted: TaskFilter, timeout_s: float) -> TaskPart:
        """Return a part of the list of the tenant's open and finished tasks.

        Asks until all partitions answer, or `timeout_s` is over. Raises `AuthenticationFailed`,
        `Invalid`, `Unavailable`, `SettingsError`.
        """
        named = {"user_id": wanted.user_id, "state": wanted.state, "cursor": wanted.cursor}
        filters = {name: value for name, value in named.items() if value is not None}
        filters |= {"mode": "detached", "limit": f"{wanted.limit}"}
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                found = self.fetch_runs(filters, max(deadline - time.monotonic(), 0.0) + _NETWORK_MARGIN_S)
                return self.parse_document(found, parse_tasks, "a list of runs")
            except Unavailable as error:
                pause_s = min(error.retry_after_s, _RETRY_S_MAX)
                if time.monotonic() + pause_s >= deadline:
                    raise
                time.sleep(pause_s)

    def _fetch_task_once(self, task_id: str, left_s: float, question: TaskQuestion) -> TaskView:
        query = {"wait_ms": str(min(int(left_s * 1000), _WAIT_MS_MAX))}
        if question.seen is not None:
            query["seen"] = question.seen
        if question.after is not None:
            query["after"] = f"{question.after[0]}:{question.after[1]}"
        query |= self.tenant_query()
        path = f"tasks/{urllib.parse.quote(task_id, safe='')}?{urllib.parse.urlencode(query)}"
        wait_s = min(left_s, _WAIT_MS_MAX / 1000) + _NETWORK_MARGIN_S
        body = self._read_answer(self._new_request(path), wait_s, f"task {task_id}")
        try:
            return parse_task(json.loads(body))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Unavailable(f"control API at {self.url} sent an answer that is not a task: {error!r}", 1.0) from None

    def tenant_query(self) -> dict[str, str]:
        """Return the parameter that names the client's tenant, if it is known."""
        return {} if self._tenant_id is None else {"tenant": self._tenant_id}

    def open_stream(self, path: str, headers: Mapping[str, str], timeout_s: float) -> OpenResponse:
        """Return an answer whose body is still to be read.

        `timeout_s` bounds each wait for the network. Raises `Unavailable`, `SettingsError`.
        """
        self.check_configured()
        assert self._servers is not None
        try:
            return self._servers.open_stream(self._new_request(path, None, headers), timeout_s)
        except Unanswered as error:
            raise Unavailable(f"control API at {error}", 0.5) from None

    def error_from(self, about: str, answer: HttpResponse) -> Exception:
        """Return the error that an answer other than 200 means; `about` names the question."""
        return _error_from(about, answer)

    def _new_request(
        self, path: str, body: bytes | None = None, more: Mapping[str, str] = MappingProxyType({})
    ) -> Request:
        headers = {"Accept": "application/json", **more}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token.get_secret_value()}"
        return Request(f"/v1/{path}", headers, body)

    def _read_answer(self, request: Request, timeout_s: float, about: str) -> bytes:
        self.check_configured()
        assert self._servers is not None
        try:
            answer = self._servers.send(request, timeout_s)
        except Unanswered as error:
            raise Unavailable(f"control API at {error}", 0.5) from None
        if answer.status >= 300:
            raise _error_from(about, answer)
        return answer.body


def _known_document(known: KnownSession) -> dict[str, Any]:
    after = None if known.after is None else f"{known.after[0]}:{known.after[1]}"
    return {**known._asdict(), "after": after}


def _error_from(about: str, answer: HttpResponse) -> Exception:
    """Return the error that an answer with an RFC 9457 problem means."""
    detail, reason = answer.reason, None
    try:
        problem = json.loads(answer.body)
        detail, reason = str(problem.get("detail") or detail), problem.get("reason")
    except (ValueError, AttributeError):
        detail += answer.via  # no processor's answer: it may be the proxy's
    if answer.status in (401, 403):
        return AuthenticationFailed(f"control API: {detail}")
    if answer.status == 404 and reason in _UNKNOWN_RECORDS:
        return RecordUnknown(f"{about}: {detail}")
    if answer.status == 410 and reason == _GONE:
        return RunGone(f"{about}: {detail}")
    if answer.status in (404, 405, 410):
        return SessionLost(f"{about}: {detail}")
    if answer.status == 400:
        return Invalid("invalid_value", f"control API: {detail}")
    if answer.status == 500 and reason == _DIFFERS:  # it would be the same again, and page again
        return Invalid("hash_mismatch", f"{about}: {detail}")
    try:
        retry_after_s = float(answer.headers.get("retry-after") or 1.0)
    except ValueError:  # a date is allowed there too
        retry_after_s = 1.0
    return Unavailable(f"control API answers {answer.status}: {detail}", retry_after_s)


def parse_session(body: dict[str, Any]) -> SessionView:
    """Return the session in the API's JSON.

    Raises `KeyError`, `TypeError`, `ValueError`, `AttributeError`.
    """
    snapshot, limits = body.get("snapshot"), body.get("limits") or {}
    head = snapshot or {}
    known: dict[str, Any] = {name: limits.get(name) for name in Limits._fields if name != "override"}
    return SessionView(
        session_id=body["session_id"],
        state=body["state"],
        phase=body.get("phase"),
        epoch=int(body["epoch"]),
        version=int(body["version"]),
        owner_service=body["owner_service"],
        state_json=body["state_json"],
        state_schema_version=int(body.get("state_schema_version") or 1),
        snapshot_id=snapshot["snapshot_id"] if snapshot else None,
        snapshot_state_json=snapshot["state_json"] if snapshot else None,
        limits=Limits(**known),
        verdict=parse_verdict(body.get("verdict")),
        data_classes=known_classes(body.get("data_classes") or ()),
        agent_id=body.get("agent_id"),
        holder=body.get("holder"),
        rejections=_parse_rejections(body.get("rejections") or ()),
        reason_code=body.get("reason_code"),
        quotas=body.get("quotas"),
        holder_epoch=body.get("holder_epoch"),
        question=None if (asked := body.get("question")) is None else types.Question(**asked),
        answers=[types.Answer(**answer) for answer in body.get("answers") or ()],
        is_answer_new=body.get("is_answer_new") is True,
        agents=[AgentMember(*(each[name] for name in AgentMember._fields)) for each in body.get("agents") or ()],
        migration=_parse_migration(body.get("migration")),
        awaits_quota=body.get("awaits_quota") is True,
        exchanges=int(body.get("exchanges") or 0),
        hold=None if (hold := body.get("hold")) is None else HeldBy(hold["by"], int(hold["until_ms"])),
        head_messages=tuple(types.SnapshotMessage(**message) for message in head.get("messages") or ()),
        head_tool=None if (tool := head.get("tool")) is None else types.ToolExecution(**tool),
        user_id=body.get("user_id"),
        external_id=body.get("external_id"),
    )


def parse_changes(body: dict[str, Any]) -> SessionChanges:
    """Return the answer to a poll in the API's JSON.

    Raises `KeyError`, `TypeError`, `ValueError`, `AttributeError`.
    """
    positions = {int(partition): int(offset) for partition, offset in body["positions"].items()}
    sessions = [
        ChangedSession(
            each["session_id"],
            each["state"],
            each["epoch"],
            each["holder"],
            each["reason_code"],
            _parse_rejections(each["rejections"]),
            parse_verdict(each["verdict"]),
            each.get("producer_seq", 0),
            each.get("holder_epoch"),
            each.get("snapshot_id"),
            each.get("agents", 0),
            each.get("owner_service"),
        )
        for each in body["sessions"]
    ]
    return SessionChanges(positions, sessions)


def parse_task(body: dict[str, Any]) -> TaskView:
    """Return the task in the API's JSON.

    Raises `KeyError`, `TypeError`, `ValueError`, `AttributeError`.
    """
    return TaskView(
        task_id=body["run_id"],
        session_id=body["session_id"],
        task_type=body["task_type"],
        state=body["state"],
        progress=body["progress"],
        result_json=body.get("result_json"),
        artifact_id=body.get("artifact_id"),
        error=parse_error(body["error"]),
        plan_json=body.get("plan_json"),
        created_ms=int(body["created_ms"]),
        entered_ms=int(body["entered_ms"]),
        last_event_ms=int(body["last_event_ms"]),
        version=body["version"],
        verdict=parse_verdict(body.get("verdict")),
        holder=body.get("holder"),
        user_id=body.get("user_id"),
    )


def parse_tasks(body: dict[str, Any]) -> TaskPart:
    """Return the tasks in the API's list of runs.

    Raises `KeyError`, `TypeError`, `ValueError`, and `Unavailable` if the list is not complete.
    """
    if missing := body["missing_partitions"]:
        raise Unavailable(f"no worker answers for the partitions {', '.join(map(str, missing))}", 1.0)
    tasks = [parse_task({"version": "", **each}) for each in body["runs"] if partition_of_task(each["run_id"], 1) == 0]
    return TaskPart(tasks, body["next_cursor"])


def _parse_rejections(documents: Sequence[dict[str, Any]]) -> tuple[Rejection, ...]:
    return tuple(Rejection(int(each["offset"]), each["reason"], each["event_id"]) for each in documents)


def _parse_migration(body: dict[str, Any] | None) -> MigrationView | None:
    if body is None:
        return None
    names = body["migration_id"], body["target_service"], body["step"]
    return MigrationView(*names, body.get("reason_code"), body.get("from_state"))


def known_classes(names: Sequence[str]) -> tuple[DataClass, ...]:
    """Return the classes that this release can write: the API may be of a later one."""
    return tuple(name for name in get_args(DataClass) if name in names and name != "UNKNOWN")


def parse_verdict(body: dict[str, Any] | None) -> Verdict | None:
    """Return the verdict in the API's JSON, if there is one. Raises `KeyError`."""
    if not body:
        return None
    return Verdict(body["outcome"] == "applied", body.get("reason"), body["outcome"] != "not_kept")


def parse_error(body: dict[str, Any] | None) -> ErrorInfo | None:
    """Return the error in the API's JSON, if there is one. Raises `KeyError`."""
    return None if body is None else ErrorInfo(**{name: body[name] for name in ErrorInfo._fields})
