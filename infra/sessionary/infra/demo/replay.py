"""Agents that are recorded, looked at in their past, replayed, forked and compared, and all counts.

    record     the agent buys parts; it orders what its model says, however dear it is
    travel     the state after each order, from ClickHouse, from the log, and from memory
    replay     the same agent over its record: all calls are served, none is executed
    fork       the mended agent asks a person first: blocked, and then allowed
    compare    `run compare` of each session with its fork

What must come out follows from what the agent is asked for. The tools note by themselves what they
really do, so no count of a replay is proved by another one.
"""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from sessionary.infra.clickhouse_client import ClickHouseClient, Json, Row
from sessionary.infra.demo.wait import PipelineStatus, wait_until_done
from sessionary.infra.environment import tenant_tokens
from sessionary.infra.past_rows import PastRows
from sessionary.infra.settings import OperatorSettings
from sessionary.producers import ProducerSettings, Replay, ReplayBlocked, Session, SessionClient, tool, traced
from sessionary.schemas.errors import SettingsError, Unavailable
from sessionary.schemas.http.control_servers import ControlServers, Unanswered
from sessionary.schemas.http.kept_connections import Request
from sessionary.schemas.ids import SessionKey
from sessionary.schemas.settings import ENV_PREFIX, ClickHouseSettings
from sessionary.stream_processors.core.past import Point, past_document
from sessionary.stream_processors.settings import ProcessorSettings

# What each session is to buy. One part is beyond the limit that the mended agent keeps.
BASKETS: Final = (("bolt", "gear"), ("gear", "nut", "bolt"), ("nut", "bolt", "gear", "nut"))
PRICES: Final[Mapping[str, int]] = {"bolt": 5, "nut": 3, "gear": 90}
LIMIT: Final = 50
DEAR: Final = "gear"
CALLS_PER_PART: Final = 3  # its price, the model's answer, its order
SOURCES: Final = ("clickhouse", "log", "memory")

_TENANT: Final = "acme"
_SERVICE: Final = "research"
_AGENT: Final = "buyer"
_STALL_S: Final = 60.0
_ANSWER_S: Final = 60.0
_COMMAND_S: Final = 120.0
_PAUSE_S: Final = 1.0
_ANSWER_BYTES_MAX: Final = 16 << 20
_ENDED: Final = """
SELECT
    (SELECT uniqExact(session_id) FROM audit FINAL
        WHERE tenant_id = {tenant:String} AND has({sessions:Array(String)}, toString(session_id))
        AND to_state = 'Terminated') AS audited,
    (SELECT uniqExact(session_id) FROM history FINAL
        WHERE tenant_id = {tenant:String} AND has({sessions:Array(String)}, toString(session_id))
        AND event_type = 'session_terminated') AS recorded"""
_PARENTS: Final = """
SELECT toString(session_id) AS id, toString(parent_session_id) AS parent FROM v_lineage
WHERE tenant_id = {tenant:String} AND has({sessions:Array(String)}, toString(session_id))"""


class Purchase(NamedTuple):
    """What the agent did in one session.

    `points`: each snapshot that it took, with the content of the session at that moment.
    """

    session_id: str
    parts: Sequence[str]
    points: Sequence[tuple[str, Json]]


class Buyer:
    """An agent that buys parts. `done` has the names of the calls that its tools really made."""

    def __init__(self) -> None:
        done: list[str] = []

        @tool(effect="read")
        def look_up(part: str) -> int:
            done.append("look_up")
            return PRICES[part]

        @traced("llm", capture=True)
        def ask_model(part: str, price: int) -> str:
            done.append("ask_model")
            return "order it"

        @tool(effect="write")
        def order(part: str) -> str:
            done.append("order")
            return f"ordered a {part}"

        @tool(effect="write")
        def ask_person(part: str, price: int) -> str:
            done.append("ask_person")
            return f"no {part} for {price}"

        self.done = done
        self._look_up, self._ask_model, self._order, self._ask_person = look_up, ask_model, order, ask_person

    def buy(self, session: Session, parts: Sequence[str], limit: int | None = None) -> Purchase:
        """Buy the parts in a session. With `limit` a person is asked for each dearer one."""
        points: list[tuple[str, Json]] = []
        ordered: list[str] = []
        with session.turn():
            session.message("user", f"buy {', '.join(parts)}")
            with session.run("buy", input={"parts": list(parts)}) as run:
                for part in parts:
                    price = self._look_up(part)
                    if limit is not None and price > limit:
                        self._ask_person(part, price)
                    elif self._ask_model(part, price) == "order it":
                        self._order(part)
                        ordered.append(part)
                        content = {"ordered": [*ordered]}
                        session.update_state(content)
                        points.append((session.snapshot(), content))
                run.result = ordered
            session.message("assistant", f"ordered {', '.join(ordered)}")
        return Purchase(session.session_id, parts, points)


class ReplayReport(NamedTuple):
    """What came of the demo: the rows of its tables, and `figures`; `faults` says what is wrong.

    Attributes:
        replays: A row per kind of work: sessions, counts of the replays, and `calls_made`,
            those that the tools really made.
        travels: A row per source: points asked for, and how many came as the agent had them, with
            hashes equal to the processor's.
        comparisons: A row per session and its fork: where they part first.
        figures: Ids and totals.
    """

    replays: list[Row]
    travels: list[Row]
    comparisons: list[Row]
    figures: dict[str, Json]

    @property
    def faults(self) -> dict[str, Json]:
        """The counts that are not what they must be, with what they must be, by name."""
        found = self.counts()
        return {
            name: f"{found.get(name)} instead of {value}"
            for name, value in right_counts().items()
            if found.get(name) != value
        }

    def counts(self) -> dict[str, Json]:
        """Return each count by table row and column."""
        tables = (("step", self.replays), ("source", self.travels), ("session", self.comparisons))
        return {
            f"{name} of {row[key]}": value
            for key, rows in tables
            for row in rows
            for name, value in row.items()
            if name != key
        }


def right_counts() -> dict[str, Json]:
    """Return what each count must be, from what the sessions are to buy."""
    calls = sum(map(len, BASKETS)) * CALLS_PER_PART
    before = sum(basket.index(DEAR) * CALLS_PER_PART + 1 for basket in BASKETS)  # and its price
    forks, points = len(BASKETS), sum(map(len, BASKETS))
    names = ("sessions", "served", "missed", "blocked", "executed", "calls_made", "reproduced")
    rows = {
        "record": (forks, 0, 0, 0, 0, calls, 0),
        "strict replay": (forks, calls, 0, 0, 0, 0, forks),
        "baseline of forks": (2 * forks, 2 * calls, 0, 0, 0, 0, 2 * forks),
        "fork, write blocked": (forks, before, forks, forks, 0, 0, forks),
        "fork, write allowed": (forks, calls - 2 * forks, forks, 0, forks, forks, forks),
    }
    right: dict[str, Json] = {
        f"{name} of {step}": value for step, values in rows.items() for name, value in zip(names, values, strict=True)
    }
    for source in SOURCES:
        right |= {
            f"{name} of {source}": points for name in ("points", "as_the_agent_had_it", "as_the_processor_held_it")
        }
    for number, basket in enumerate(BASKETS, 1):
        right |= {
            f"parted_at of session {number}": 2 * basket.index(DEAR) + 2,
            f"recorded of session {number}": f"order {DEAR}",
            f"fork of session {number}": f"ask_person {DEAR}",
            f"parent_named of session {number}": True,
        }
    return right


def play_replay(environ: Mapping[str, str], data: Path, progress: Callable[[str], None]) -> ReplayReport:
    """Record, travel, replay, fork and compare on a running stack, and report. Blocks.

    `environ`: the stack's variables. `data`: its folder, for the spool and for `run compare`.

    Raises `SettingsError` if the stack has no token for the demo's tenant, `Unavailable` if rows or
    answers do not come in time, and as the client and `ClickHouseClient` do.
    """
    token = tenant_tokens(environ).get(_TENANT)
    if token is None:
        raise SettingsError(f"SESSIONARY_API_TOKENS has no token for {_TENANT}")
    clickhouse = ClickHouseClient(ClickHouseSettings.from_env(environ))
    buyer = Buyer()
    settings = ProducerSettings.from_env(
        environ, api_token=token, spool_dir=data / "replay" / "spool", handle_sigterm=False
    )
    with SessionClient(tenant_id=_TENANT, service_id=_SERVICE, agent_id=_AGENT, settings=settings) as client:
        purchases, recorded = record_purchases(client, buyer, progress)
        _await_rows(clickhouse, [each.session_id for each in purchases], progress)
        travels = _travel(environ, clickhouse, token, purchases, progress)
        replays, forks = replay_purchases(client, buyer, purchases, progress)
    _await_rows(clickhouse, [*forks.values()], progress)
    parents = clickhouse.fetch_rows(_PARENTS, tenant=_TENANT, sessions=_array(forks.values()))
    comparisons = _compare(data, forks, {row["id"]: row["parent"] for row in parents}, progress)
    figures: dict[str, Json] = {
        "sessions": {f"{number}": session_id for number, session_id in enumerate(forks, 1)},
        "forks": {f"{number}": session_id for number, session_id in enumerate(forks.values(), 1)},
        "snapshots": {f"{number}": each.points[0][0] for number, each in enumerate(purchases, 1)},
    }
    return ReplayReport([recorded, *replays], travels, comparisons, figures)


def _row(
    step: str, sessions: int, counts: Mapping[str, int] | None = None, *, calls_made: int, reproduced: int = 0
) -> Row:
    found = counts or {}
    names = ("served", "missed", "blocked", "executed")
    counted = {name: found.get(name, 0) for name in names}
    return {"step": step, "sessions": sessions, **counted, "calls_made": calls_made, "reproduced": reproduced}


def record_purchases(
    client: SessionClient, buyer: Buyer, progress: Callable[[str], None]
) -> tuple[list[Purchase], Row]:
    """Let the agent buy each basket in a session of its own; return what it did, and its row."""
    found = []
    for number, parts in enumerate(BASKETS, 1):
        progress(f"recording: session {number} of {len(BASKETS)} buys {', '.join(parts)}")
        with client.session(user_id="ada", state={"ordered": []}) as session:
            found.append(buyer.buy(session, parts))
    client.flush()
    return found, _row("record", len(found), calls_made=len(buyer.done))


def _await_rows(clickhouse: ClickHouseClient, session_ids: Sequence[str], progress: Callable[[str], None]) -> None:
    """Wait until ClickHouse has the ends of the sessions. Raises `Unavailable` without them."""

    def check() -> PipelineStatus:
        row = clickhouse.fetch_one(_ENDED, tenant=_TENANT, sessions=_array(session_ids))
        ended = min(int(row["audited"]), int(row["recorded"]))
        text = f"waiting for rows: ClickHouse has the ends of {ended} of {len(session_ids)} sessions"
        return PipelineStatus(ended == len(session_ids), ended, text)

    if not wait_until_done(check, _STALL_S, progress):
        raise Unavailable(f"the ends of {len(session_ids)} sessions did not come to ClickHouse", _PAUSE_S)


def _array(values: Iterable[str]) -> str:
    return "[" + ",".join(f"'{value}'" for value in values) + "]"


# The past.


def _travel(
    environ: Mapping[str, str],
    clickhouse: ClickHouseClient,
    token: str,
    purchases: Sequence[Purchase],
    progress: Callable[[str], None],
) -> list[Row]:
    """Ask each source for the state at each snapshot; return what came, by the serving source."""
    rows = PastRows(clickhouse, ProcessorSettings.from_env(environ))
    asked, had, held = Counter[str](), Counter[str](), Counter[str]()
    with _control_api(environ, token) as ask:
        for number, purchase in enumerate(purchases, 1):
            progress(f"travelling: {len(purchase.points)} points of session {number} of {len(purchases)}")
            key = SessionKey(_TENANT, purchase.session_id)
            for snapshot_id, content in purchase.points:
                point = Point("snapshot", snapshot_id)
                (state,), partition = rows.states_at(key, [point])
                page = f"/v1/sessions/{purchase.session_id}/at?snapshot={snapshot_id}"
                # The processor folds its log for the first question, and remembers for the second.
                told = (past_document(state, "clickhouse", key, partition, point), ask(page), ask(page))
                for document in told:
                    source = f"{document['source']}"
                    asked[source] += 1
                    had[source] += json.loads(document["row"]["state_json"]) == content
                    held[source] += document["check"]["verdict"] == "equal"
    return [
        {
            "source": source,
            "points": count,
            "as_the_agent_had_it": had[source],
            "as_the_processor_held_it": held[source],
        }
        for source, count in asked.items()
    ]


@contextmanager
def _control_api(environ: Mapping[str, str], token: str) -> "Iterator[Callable[[str], dict[str, Json]]]":
    """Yield a function that returns a page of the control API. It raises `Unavailable`."""
    settings = OperatorSettings.from_env(environ)
    if settings.control_url is None:
        raise SettingsError("SESSIONARY_CONTROL_URL is not set: set it to a processor's address")
    servers = ControlServers(settings.control_url, settings.control_ca_location, _ANSWER_BYTES_MAX)

    def ask(path: str) -> dict[str, Json]:
        deadline = time.monotonic() + _ANSWER_S
        while True:
            try:
                answer = servers.send(Request(path, {"Authorization": f"Bearer {token}"}), _ANSWER_S)
            except Unanswered as error:
                raise Unavailable(f"{settings.control_url} does not answer ({error})", _PAUSE_S) from None
            document: dict[str, Json] = json.loads(answer.body)
            if answer.status == 200:
                return document
            if answer.status != 503 or time.monotonic() > deadline:
                raise Unavailable(f"{path}: {document.get('detail')}", _PAUSE_S)
            time.sleep(_PAUSE_S)  # the processor, or its broker, has too much to do

    try:
        yield ask
    finally:
        servers.close_idle()


# Replays and forks.


def replay_purchases(
    client: SessionClient, buyer: Buyer, purchases: Sequence[Purchase], progress: Callable[[str], None]
) -> tuple[list[Row], dict[str, str]]:
    """Replay and fork each session; return a row per kind of work, and the forks by session."""
    replayed = _replay(client, buyer, purchases, progress)
    baselines: list[Replay] = []
    blocked, _ = _fork(client, buyer, purchases, (), baselines, progress)
    allowed, forks = _fork(client, buyer, purchases, ("ask_person",), baselines, progress)
    counts = Counter[str]()
    for replay in baselines:
        counts.update(replay.counts._asdict())
    reproduced = sum(each.reproduces for each in baselines)
    baseline = _row("baseline of forks", len(baselines), counts, calls_made=0, reproduced=reproduced)
    return [replayed, baseline, blocked, allowed], forks


def _replay(client: SessionClient, buyer: Buyer, purchases: Sequence[Purchase], progress: Callable[[str], None]) -> Row:
    """Replay each session by the unchanged agent."""
    counts, reproduced, before = Counter[str](), 0, len(buyer.done)
    for number, purchase in enumerate(purchases, 1):
        progress(f"replaying: session {number} of {len(purchases)}")
        with client.replay(purchase.session_id) as replay, replay.session() as session:
            buyer.buy(session, purchase.parts)
        counts.update(replay.counts._asdict())
        reproduced += replay.reproduces
    return _row("strict replay", len(purchases), counts, calls_made=len(buyer.done) - before, reproduced=reproduced)


def _fork(
    client: SessionClient,
    buyer: Buyer,
    purchases: Sequence[Purchase],
    allow: Sequence[str],
    baselines: list[Replay],
    progress: Callable[[str], None],
) -> tuple[Row, dict[str, str]]:
    """Fork each session by the mended agent, after its baseline; return the forks' ids too.

    The replays of the baselines are appended to `baselines`.
    """
    step = "fork, write allowed" if allow else "fork, write blocked"
    counts, valid, before = Counter[str](), 0, len(buyer.done)
    forks = {}
    for number, purchase in enumerate(purchases, 1):
        progress(f"forking: session {number} of {len(purchases)}, {step.removeprefix('fork, ')}")

        def replay_unchanged(replay: Replay, parts: Sequence[str] = purchase.parts) -> None:
            baselines.append(replay)
            with replay.session() as session:
                buyer.buy(session, parts)

        fork = client.replay(purchase.session_id, mode="fork", baseline=replay_unchanged, allow=allow)
        try:
            with fork, fork.session() as session:
                forks[purchase.session_id] = session.session_id
                buyer.buy(session, purchase.parts, LIMIT)
        except ReplayBlocked:
            pass  # it is counted
        counts.update(fork.counts._asdict())
        valid += fork.is_valid
    return _row(step, len(purchases), counts, calls_made=len(buyer.done) - before, reproduced=valid), forks


def _compare(
    data: Path, forks: Mapping[str, str], parents: Mapping[str, str], progress: Callable[[str], None]
) -> list[Row]:
    """Compare each session with its fork by `run compare`."""
    rows: list[Row] = []
    for number, (session_id, fork_id) in enumerate(forks.items(), 1):
        progress(f"comparing: session {number} of {len(forks)} with its fork")
        command = ["run", "compare", session_id, fork_id, "--tenant", _TENANT, "--data", str(data), "--json"]
        parted = _run_command(command)["divergences"]["name"] or {"number": None, "a": None, "b": None}
        rows.append(
            {
                "session": f"session {number}",
                "parted_at": parted["number"],
                "recorded": _call_text(parted["a"]),
                "fork": _call_text(parted["b"]),
                "parent_named": parents.get(fork_id) == session_id,
            }
        )
    return rows


def _call_text(piece: Mapping[str, Json] | None) -> str:
    if piece is None:
        return "the end"
    return f"{piece['name']} {json.loads(piece['arguments'] or '{}').get('part', '')}".strip()


def _run_command(arguments: Sequence[str]) -> dict[str, Json]:
    """Run a command as its user would, and return its answer. Raises `Unavailable`."""
    argv = [sys.executable, "-m", "sessionary.infra.cli", *arguments]
    environ = {name: value for name, value in os.environ.items() if not name.startswith(ENV_PREFIX)}
    try:
        done = subprocess.run(argv, capture_output=True, text=True, env=environ, timeout=_COMMAND_S, check=False)
    except subprocess.TimeoutExpired:
        raise Unavailable(f"sessionary {' '.join(arguments)} took more than {_COMMAND_S:g} s", _PAUSE_S) from None
    if done.returncode != 0:
        raise Unavailable(f"sessionary {' '.join(arguments)} failed: {done.stderr.strip()}", _PAUSE_S)
    answer: dict[str, Json] = json.loads(done.stdout)
    return answer
