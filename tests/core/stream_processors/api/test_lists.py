"""What the control API lists over all partitions, with two workers over HTTP."""

import asyncio
import base64
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from sessionary.infra.local.ports import free_ports
from sessionary.schemas.ids import SessionKey, new_session_id, partition_of, run_key
from sessionary.schemas.records import SessionState
from sessionary.stream_processors.api.openapi import DOCUMENT
from sessionary.stream_processors.core.partition import PartitionState
from tests.core.oracle_rig import DECODER, FIRST_POSITION, SETTINGS, OracleRig
from tests.core.stream_processors.api.api_server import ApiResponse, FakeAssignment, Server, running_server
from tests.support.event_factory import EventFactory
from tests.support.judges import JUDGE

PARTITIONS = 4
USERS = ("ann", "bob", None)


class FakeOwner:
    """Owns one partition, whose rows a test puts there."""

    def __init__(self, partition: int) -> None:
        self.partition, self.is_readable = partition, True
        self.committed_s = time.monotonic()
        self.accesses: list[Any] = []
        self.state = PartitionState(partition, SETTINGS, DECODER, JUDGE)
        self.state.load_position(FIRST_POSITION._replace(next_offset=100 + partition))


class Fleet:
    """Two workers of four partitions, and the sessions of two tenants, each with runs.

    Every third session has no user; every other one has the runs `a` (running), `a!` (completed)
    and `b` (started, attached).
    """

    def __init__(self, sessions: int) -> None:
        rig, agent = OracleRig(), EventFactory()
        rig.start(agent)
        session = rig.row_of(agent)
        for run_id, mode in (("a", "detached"), ("a!", "detached"), ("b", "attached")):
            rig.send(agent, "run_started", {"run_id": run_id}, mode=mode)
        for run_id in ("a", "a!"):
            rig.send(agent, "run_running", {"run_id": run_id}, progress=0.5)
        rig.send(agent, "run_completed", {"run_id": "a!"}, result_json="1", artifact_id=None)
        runs = [rig.fold.rows[run_key(*agent.key, run_id)] for run_id in ("a", "a!", "b")]
        self.owners = [FakeOwner(n) for n in range(PARTITIONS)]
        self.keys: list[SessionKey] = []
        ids: dict[str, Any]
        for n in range(sessions):
            key = SessionKey("zeta" if n % 5 == 4 else "acme", new_session_id())
            self.keys.append(key)
            state = self.owners[partition_of(key.encoded(), PARTITIONS)].state
            ids = {"tenant_id": key.tenant_id, "session_id": key.session_id, "user_id": USERS[n % 3]}
            state.load(key.encoded(), session._replace(**ids, state="Paused" if n % 7 == 6 else "Active"))
            for run in runs if n % 2 else ():
                state.load(run_key(*key, run.run_id), run._replace(**ids))
        for owner in self.owners:
            owner.state.finish_loading()

    def rows_of(self, row_class: type[Any], tenant_id: str = "acme") -> list[Any]:
        rows = [row for owner in self.owners for row in owner.state.rows.values() if type(row) is row_class]
        return [row for row in rows if row.tenant_id == tenant_id]

    @asynccontextmanager
    async def serve(self, folder: Path, answering: Sequence[int] = (0, 1)) -> AsyncIterator[Server]:
        """Serve the first worker, which owns two partitions; `answering`: the workers that run."""
        ports = free_ports(2)
        urls = {n: f"http://127.0.0.1:{ports[n // 2]}" for n in range(PARTITIONS)}
        first, second = FakeAssignment(), FakeAssignment()
        first.owners = {n: self.owners[n] for n in (0, 1)}
        second.owners = {n: self.owners[n] for n in (2, 3)}
        async with running_server(folder / "w1", first, urls, "w1", ports[0]) as server:
            if 1 not in answering:
                yield server
                return
            async with running_server(folder / "w2", second, urls, "w2", ports[1]):
                yield server


async def ask(server: Server, page: str, **query: Any) -> ApiResponse:
    return await server.ask(f"/v1/{page}?{urlencode(query)}".encode())


async def all_rows(server: Server, page: str, **query: Any) -> list[Any]:
    """Ask until there is no cursor, and return the rows of all answers."""
    found: list[Any] = []
    cursor: dict[str, str] = {}
    while True:
        answer = await ask(server, page, **query, **cursor)
        assert answer.status == 200, answer
        assert answer.body["missing_partitions"] == []
        assert len(answer.body[page]) <= query.get("limit", 100)
        found += answer.body[page]
        if answer.body["next_cursor"] is None:
            return found
        cursor = {"cursor": answer.body["next_cursor"]}


def fields(schema: str) -> set[str]:
    return set(DOCUMENT["components"]["schemas"][schema]["properties"])


@pytest.mark.parametrize("limit", [1, 7, 1_000])
def test_a_tenants_sessions_are_listed_over_all_partitions_and_workers(tmp_path: Path, limit: int) -> None:
    fleet = Fleet(40)
    wanted = sorted(row.session_id for row in fleet.rows_of(SessionState))

    async def story() -> None:
        async with fleet.serve(tmp_path) as server:
            found = await all_rows(server, "sessions", limit=limit)
            assert [row["session_id"] for row in found] == wanted
            assert {frozenset(row) for row in found} == {frozenset(fields("SessionHead"))}

    asyncio.run(story())


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ({}, {"a", "a!", "b"}),
        ({"state": "running"}, {"a"}),
        ({"state": "completed"}, {"a!"}),
        ({"mode": "attached"}, {"b"}),
        ({"mode": "attached", "state": "running"}, set()),
        ({"user_id": "ann", "state": "started"}, {"b"}),
        ({"user_id": "someone else"}, set()),
    ],
)
def test_a_tenants_runs_are_listed_by_user_state_and_mode(
    tmp_path: Path, query: dict[str, str], wanted: set[str]
) -> None:
    fleet = Fleet(40)
    users = {query["user_id"]} if "user_id" in query else set(USERS)
    with_runs = {key.session_id for n, key in enumerate(fleet.keys) if n % 2 and key.tenant_id == "acme"}
    of_users = {row.session_id for row in fleet.rows_of(SessionState) if row.user_id in users} & with_runs

    async def story() -> None:
        async with fleet.serve(tmp_path) as server:
            found = await all_rows(server, "runs", limit=7, **query)
            assert {(run["session_id"], run["run_id"]) for run in found} == {(s, r) for s in of_users for r in wanted}
            assert len(found) == len(of_users) * len(wanted)
            assert all(set(run) == fields("RunHead") for run in found)

    asyncio.run(story())


def test_partitions_that_do_not_answer_are_named_and_the_others_rows_are_listed(tmp_path: Path) -> None:
    fleet = Fleet(40)
    fleet.owners[1].is_readable = False
    wanted = {row.session_id for row in fleet.owners[0].state.rows.values() if isinstance(row, SessionState)}

    async def story() -> None:
        async with fleet.serve(tmp_path, answering=(0,)) as server:
            answer = await ask(server, "sessions")
            assert answer.status == 200
            assert (answer.body["missing_partitions"], answer.body["positions"]) == ([1, 2, 3], {"0": 100})
            assert set(answer.body) == fields("SessionList")
            acme = {key.session_id for key in fleet.keys if key.tenant_id == "acme"}
            assert {row["session_id"] for row in answer.body["sessions"]} == wanted & acme

    asyncio.run(story())


@pytest.mark.parametrize(
    "query",
    ["limit=0", "limit=1001", "limit=x", "state=lost", "mode=both", "cursor=a", "cursor=%ff", "cursor="],
)
def test_a_malformed_question_is_answered_with_a_problem(tmp_path: Path, query: str) -> None:
    async def story() -> None:
        async with running_server(tmp_path) as server:
            answer = await server.ask(f"/v1/runs?{query}".encode())
            assert answer.is_problem
            assert (answer.status, answer.body["reason"]) == (400, "invalid_value")
            assert (await server.ask(b"/v1/runs", None)).status == 401
            assert (await server.ask(b"/v1/sessions?tenant=zeta")).status == 403

    asyncio.run(story())


def test_a_partition_reads_a_bounded_number_of_rows_for_one_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sessionary.stream_processors.api.lists.ROWS_MAX", 3)
    fleet = Fleet(40)

    async def story() -> None:
        async with fleet.serve(tmp_path) as server:
            answer = await ask(server, "sessions", user_id="someone else")
            assert answer.body["sessions"] == []
            assert answer.body["next_cursor"] is not None
            assert await all_rows(server, "sessions", user_id="someone else") == []
            wanted = [row for row in fleet.rows_of(SessionState) if row.user_id == "bob"]
            assert len(await all_rows(server, "sessions", user_id="bob")) == len(wanted) > 0

    asyncio.run(story())


def test_a_cursor_tells_a_user_nothing_of_the_rows_that_were_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sessionary.stream_processors.api.lists.ROWS_MAX", 3)
    fleet = Fleet(40)
    ids = [key.session_id.encode() for key in fleet.keys]

    async def story() -> None:
        async with fleet.serve(tmp_path) as server:
            for page in (b"sessions", b"runs"):
                cursor = b""
                for _ in range(3):
                    answer = await server.ask(b"/v1/" + page + cursor, b"Bearer of-u1")
                    assert answer.body[page.decode()] == []
                    sealed = base64.urlsafe_b64decode(answer.body["next_cursor"] + "==")
                    assert not any(name[:13] in sealed or name[-12:] in sealed for name in ids)
                    cursor = b"?cursor=" + answer.body["next_cursor"].encode()

    asyncio.run(story())
