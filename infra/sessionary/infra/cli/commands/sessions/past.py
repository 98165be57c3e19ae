"""`sessionary session at`, `diff` and `snapshots`: a session's states in its history.

The sources are asked in this order, and the answer names the one that served: the row and the
memory of the processor that owns the session; ClickHouse; the log in Kafka, which the processor
folds.
"""

import json
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from sessionary.infra.cli.commands.sessions.lookup import SessionArgument, find_session
from sessionary.infra.cli.errors import CheckFailed, NotFound, error_text
from sessionary.infra.cli.options import DataOption, JsonOption, TenantOption, clickhouse_client
from sessionary.infra.cli.output import print_message, wants_json
from sessionary.infra.cli.tables import show_object, show_rows
from sessionary.infra.cli.times import FIRST, TIMES, parse_point_in_time
from sessionary.infra.environment import stack_environment, tenant_tokens
from sessionary.infra.settings import OperatorSettings
from sessionary.schemas.errors import Invalid, SessionaryError, SettingsError, Unavailable
from sessionary.schemas.http.control_servers import ControlServers, Unanswered
from sessionary.schemas.http.kept_connections import Request
from sessionary.schemas.ids import SessionKey
from sessionary.schemas.records import SessionState
from sessionary.schemas.snapshots import snapshot_document

if TYPE_CHECKING:
    from sessionary.stream_processors.core.past import PastState

_HELD_S: Final = 10.0
_FOLD_S: Final = 620.0  # longer than a processor lets another one fold
_ANSWER_BYTES_MAX: Final = 256 << 20
_RETRY_AFTER_S: Final = 2.0
_VALUES: Final = {
    "offset": "a whole number of 0 or more",
    "time": TIMES,
    "event": "the id of an event",
    "snapshot": "the id of a snapshot",
}
_POINT_HELP: Final = "offset:NUMBER, time:TIME, event:ID or snapshot:ID."
_CHAIN_COLUMNS: Final = (
    "number",
    "snapshot_id",
    "parent_snapshot_id",
    "time",
    "event_type",
    "side",
    "tool_name",
    "turn",
)
_CHAIN: Final = (
    "SELECT * FROM v_snapshots WHERE tenant_id = {tenant:String} AND session_id = {session:String} ORDER BY number"
)
_DIFF_COLUMNS: Final = ("field", "before", "after")


def at_command(
    session: SessionArgument,
    offset: Annotated[
        int | None,
        typer.Option("--offset", min=0, help="After the record at this offset of its partition.", show_default=False),
    ] = None,
    time: Annotated[str | None, typer.Option("--time", help=f"At this time: {TIMES}.", show_default=False)] = None,
    snapshot: Annotated[
        str | None, typer.Option("--snapshot", help="When the snapshot of this id was taken.", show_default=False)
    ] = None,
    event: Annotated[
        str | None, typer.Option("--event", help="After the event of this id.", show_default=False)
    ] = None,
    tenant: TenantOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a session's state as the processor held it at one point of its history.

    It is checked against the hashes that the processor left. --json has all rows, with content.
    """
    given = {"offset": offset, "time": time, "snapshot": snapshot, "event": event}
    points = {kind: f"{value}" for kind, value in given.items() if value is not None}
    if len(points) != 1:
        what = " and ".join(f"--{kind} {value}" for kind, value in points.items()) or "no option"
        raise Invalid("invalid_value", f"{what}: give one point, by --offset, --time, --snapshot or --event")
    ((kind, text),) = points.items()
    point = _read_point(kind, text, f"--{kind}")
    (found,) = _Past(session, tenant, data).tell([point])
    if wants_json(as_json):
        show_object(found, as_json=True)
        return
    row = found["row"] or {}
    named = ("state", "phase", "reason_code", "epoch", "version", "agent_id", "owner_service", "state_json")
    about = {name: found[name] for name in ("session_id", "tenant_id", "point", "source", "position", "check", "lost")}
    show_object({**about, "state": found["state"], **{name: row.get(name) for name in named[1:]}}, as_json=False)
    print_message("")
    show_rows(found["children"], as_json=False, columns=("kind", "state", "role", "name", "content", "run_id"))


def diff_command(
    session: SessionArgument,
    first: Annotated[str, typer.Argument(metavar="FROM", help=_POINT_HELP)],
    second: Annotated[str, typer.Argument(metavar="TO", help=_POINT_HELP)],
    tenant: TenantOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show each field of a session's rows that differs between two points of its history."""
    points = [_parse_point(text) for text in (first, second)]
    before, after = _Past(session, tenant, data).tell(points)
    show_rows(list(list_differences(before, after)), as_json=as_json, columns=_DIFF_COLUMNS)


def snapshots_command(
    session: SessionArgument, tenant: TenantOption = None, data: DataOption = None, as_json: JsonOption = False
) -> None:
    """Show a session's snapshots in the order of their chain, as ClickHouse has them.

    --json has them whole: deltas are resolved by the processor's rules, and hashes checked.
    """
    rows = _Past(session, tenant, data).chain(whole=wants_json(as_json))
    show_rows(rows, as_json=as_json, columns=_CHAIN_COLUMNS)


def list_differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the fields of two states' rows that differ: path, and both values; None: not there."""
    flat = [dict(_flatten("", _named_rows(document))) for document in (before, after)]
    for field in sorted(flat[0].keys() | flat[1].keys()):
        values = [each.get(field) for each in flat]
        if values[0] != values[1]:
            yield {"field": field, "before": values[0], "after": values[1]}


def _named_rows(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rows of a state by names that are the same at another point."""
    rows: dict[str, Any] = {"session": document["row"] or {}}
    keys = ("run_id", "name", "idem_key", "tool_call_id", "artifact_id", "operation", "agent_id", "turn")
    for child in document["children"]:
        kind = child["kind"]
        places = ("turn",) if kind == "MessageState" else ("agent_id",) if kind == "AgentState" else keys[:-2]
        name = ".".join(str(child[key]) for key in places if child.get(key) is not None)
        rows[f"{kind}[{name}]"] = child
    return rows


def _flatten(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for name, part in value.items():
            yield from _flatten(f"{path}.{name}" if path else name, part)
    else:
        yield path, value


def _parse_point(text: str) -> tuple[str, str | int]:
    """Return kind and value of a point; a time in ms since the epoch. Raises `Invalid`."""
    kind, _, value = text.partition(":")
    if kind not in _VALUES:
        raise Invalid("invalid_value", f"{text!r} is no point: give {_POINT_HELP}")
    return _read_point(kind, value, f"{kind}:")


def _read_point(kind: str, text: str, name: str) -> tuple[str, str | int]:
    """Return a point of a kind, as `_parse_point`. `name`: what the user has written before it."""
    if not text:
        raise Invalid("invalid_value", f"{name} is empty: give {_VALUES[kind]}")
    if kind == "time":
        at = parse_point_in_time(name, text, datetime.now(UTC))
        if at < FIRST:
            raise Invalid("invalid_value", f"{name} {text}: no session began before {FIRST.year}; give {TIMES}")
        return kind, (at - FIRST) // timedelta(milliseconds=1)
    if kind == "offset":
        if not (text.isascii() and text.isdecimal()):
            raise Invalid("invalid_value", f"{name} {text}: give {_VALUES[kind]}")
        return kind, int(text)
    return kind, text


class _Past:
    """Asks the sources for states of one session."""

    def __init__(self, session: str, tenant: str | None, data: Path | None) -> None:
        self._source = clickhouse_client(data)
        self._environ = stack_environment(data)
        found = find_session(self._source, session, tenant)
        self._session = SessionKey(found["tenant_id"], found["session_id"])

    def tell(self, points: Sequence[tuple[str, str | int]]) -> Sequence[dict[str, Any]]:
        """Return the states at some points. Raises `SessionaryError`."""
        with_api = OperatorSettings.from_env(self._environ).control_url is not None
        found = {point: self._ask(point, fold=False) if with_api else None for point in points}
        missing = [point for point, state in found.items() if state is None]
        try:
            found |= zip(missing, self._fold_rows(missing) if missing else (), strict=True)
        except SessionaryError as error:
            if not with_api:
                raise
            found |= self._ask_log(missing, error)
        return [state for point in points if (state := found[point]) is not None]

    def _ask_log(
        self, points: Sequence[tuple[str, str | int]], why: SessionaryError
    ) -> Mapping[tuple[str, str | int], dict[str, Any] | None]:
        """Return the states as the processor folds them, and say why ClickHouse does not tell them.

        Raises `SessionaryError`. That both have no such state is said once, by the processor.
        """
        from sessionary.stream_processors.errors import PointUnknown, StateExpired

        note = f"not from ClickHouse: {error_text(why)}"
        try:
            found = {point: self._ask(point, fold=True) for point in points}
        except SessionaryError as error:
            if not (isinstance(error, NotFound) and isinstance(why, NotFound | PointUnknown | StateExpired)):
                print_message(note)
            raise
        print_message(note)
        return found

    def chain(self, *, whole: bool) -> Sequence[dict[str, Any]]:
        """Return the snapshots in the order of their chain, with their content if `whole`."""
        tenant, session_id = self._session
        rows = self._source.fetch_rows(_CHAIN, tenant=tenant, session=session_id)
        if not (whole and rows):
            return rows
        states, _ = self._fold_states([("snapshot", str(row["snapshot_id"])) for row in rows])
        told = zip(rows, states, strict=True)
        return [{**row, "snapshot": _head_document(state)} for row, state in told]

    def _fold_rows(self, points: Sequence[tuple[str, str | int]]) -> Sequence[dict[str, Any]]:
        """Fold what ClickHouse has. Raises `SessionaryError` if that does not do."""
        from sessionary.stream_processors.core.past import Point, past_document

        states, partition = self._fold_states(points)
        wanted = [Point(kind, value) for kind, value in points]  # type: ignore[arg-type]  # `_parse_point` knows no others
        told = zip(states, wanted, strict=True)
        return [past_document(state, "clickhouse", self._session, partition, point) for state, point in told]

    def _fold_states(self, points: Sequence[tuple[str, str | int]]) -> "tuple[Sequence[PastState], int]":
        """Return the states at some points, and their partition. Raises `SessionaryError`."""
        from sessionary.infra.past_rows import PastRows  # the processor takes long to load
        from sessionary.sinks.settings import RetentionSettings
        from sessionary.stream_processors.core.past import Point
        from sessionary.stream_processors.settings import ProcessorSettings

        settings = ProcessorSettings.from_env(self._environ)
        if not settings.keys:
            raise SettingsError(
                "events of operators cannot be told from forged ones: set SESSIONARY_SIGNING_KEYS, or "
                "SESSIONARY_SIGNING_KEYS_FILE, as the processors have it"
            )
        wanted = [Point(kind, value) for kind, value in points]  # type: ignore[arg-type]  # `_parse_point` knows no others
        try:
            states, partition = PastRows(self._source, settings).states_at(self._session, wanted)
        except Invalid as broken:
            if broken.reason not in ("broken_chain", "hash_mismatch"):
                raise
            days = RetentionSettings.from_env(self._environ).retention_idle_days
            raise CheckFailed(
                f"{broken.detail}: rows are missing, and sessionary integrity check finds which; or heartbeats have "
                f"expired, which ClickHouse keeps for {days} days"
            ) from None
        for state in states:
            if state.check.verdict != "differs":
                continue
            days = RetentionSettings.from_env(self._environ).retention_idle_days
            if datetime.now(UTC) - datetime.fromtimestamp(state.began_ms / 1_000, UTC) > timedelta(days=days):
                raise NotFound(f"expired: ClickHouse keeps heartbeats for {days} days, and the state depends on them")
            raise CheckFailed(
                f"its rows do not lead to the state that the processor held at offset {state.check.offset}: "
                "sessionary integrity check finds missing ones"
            )
        return states, partition

    def _ask(self, point: tuple[str, str | int], *, fold: bool) -> dict[str, Any] | None:
        """Ask the processor; None if it does not hold the state, or, without a fold, is away."""
        settings = OperatorSettings.from_env(self._environ)
        tenant, session_id = self._session
        token = tenant_tokens(self._environ).get(tenant)
        if settings.control_url is None or token is None:
            if not fold:
                return None
            raise SettingsError(f"set SESSIONARY_API_TOKENS to tokens with one of tenant {tenant} and the role reader")
        kind, value = point
        query = {"time_ms" if kind == "time" else kind: str(value), "fold": "true" if fold else "false"}
        path = f"/v1/sessions/{session_id}/at?{urllib.parse.urlencode(query)}"
        servers = ControlServers(settings.control_url, settings.control_ca_location, _ANSWER_BYTES_MAX)
        try:
            answer = servers.send(Request(path, {"Authorization": f"Bearer {token}"}), _FOLD_S if fold else _HELD_S)
        except Unanswered as error:
            if not fold:
                return None
            raise Unavailable(f"{settings.control_url} does not answer ({error})", _RETRY_AFTER_S) from None
        finally:
            servers.close_idle()
        if answer.status != 200 and not fold:
            return None
        try:
            document: dict[str, Any] = dict(json.loads(answer.body))
        except (ValueError, TypeError):
            raise Unavailable(f"{settings.control_url} answered with no JSON object", _RETRY_AFTER_S) from None
        if answer.status != 200:
            raise _error_of(answer.status, str(document.get("detail")))
        return document


def _head_document(state: "PastState") -> dict[str, Any]:
    assert isinstance(state.row, SessionState)  # at a snapshot
    return snapshot_document(state.row.snapshot)


def _error_of(status: int, detail: str) -> SessionaryError:
    if status in (404, 410):
        return NotFound(detail)
    if status in (401, 403):
        return SettingsError(detail)
    if status == 503:
        return Unavailable(detail, _RETRY_AFTER_S)
    return CheckFailed(detail) if status == 500 else Invalid("invalid_value", detail)
