"""The operators' pages of the rules over HTTP: several workers, old ones among them."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from sessionary.infra.local.ports import free_port
from sessionary.schemas.records import Position
from sessionary.schemas.rules import NEWEST_RULES
from sessionary.schemas.settings import KafkaSettings
from sessionary.schemas.types import AnnouncedRules
from sessionary.stream_processors.api.openapi import DOCUMENT
from sessionary.stream_processors.core_build import core_build
from sessionary.stream_processors.errors import Halted, Lost
from sessionary.stream_processors.rules_change import RulesRequest
from tests.core.stream_processors.api.api_server import ApiResponse, FakeAssignment, Server, running_server
from tests.support.second_rules import SECOND_RULES
from tests.support.signing import KEYS

pytestmark = pytest.mark.usefixtures("second_rules")

RULES = b"/v1/rules"
FIRST, NEWEST = NEWEST_RULES.version, SECOND_RULES.version
SCHEMAS = DOCUMENT["components"]["schemas"]


class FakeOwner:
    """A partition whose rules begin as soon as they are requested, or are only announced."""

    def __init__(self, partition: int, halted: Halted | None = None, begins: bool = True, opened: bool = True) -> None:
        self.partition, self.halted, self.is_open = partition, halted, opened and halted is None
        self.state, self.position = self, Position(70, 0, 0, 7, 0)
        self.requests: list[RulesRequest] = []
        self.decision_left = None
        self.began_reading = True
        self._begins = begins

    def request_rules(self, request: RulesRequest) -> None:
        self.requests.append(request)
        if self._begins:
            self.position = self.position._replace(rules=request.rules)
        else:
            self.position = self.position._replace(announced=AnnouncedRules(*request.rules, 70, request.principal))

    async def wait_until(self, is_reached: Callable[[Position], bool], timeout_s: float) -> bool:
        assert timeout_s > 0
        return is_reached(self.position)


class Owned(FakeAssignment):
    """Owns partitions 0 and on, or those that are given."""

    def __init__(self, *owners: FakeOwner) -> None:
        super().__init__()
        self.owners = {owner.partition: owner for owner in owners}


async def activate(server: Server, version: object = NEWEST, **settings: object) -> ApiResponse:
    body = json.dumps({"version": version, **settings}).encode()
    return await server.ask(RULES, b"Bearer op", b"POST", body=body)


async def list_rules(server: Server) -> dict[str, Any]:
    answer = await server.ask(RULES, b"Bearer op")
    assert answer.status == 200, answer
    assert all(found.keys() == SCHEMAS["PartitionRules"]["properties"].keys() for found in answer.body["partitions"])
    assert answer.body.keys() == SCHEMAS["RulesList"]["properties"].keys()
    assert all(found.keys() == SCHEMAS["WorkerRules"]["properties"].keys() for found in answer.body["workers"])
    found: dict[str, Any] = answer.body
    return found


def in_force(document: dict[str, Any]) -> list[tuple[Any, Any]]:
    return [(found["rules"], found["announced"]) for found in document["partitions"]]


@asynccontextmanager
async def old_worker() -> AsyncIterator[str]:
    """Serve a worker that has no page for the rules. Yields its URL."""
    port = free_port()
    runner = web.AppRunner(web.Application())
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


def test_rules_of_all_workers_are_listed_and_activated(tmp_path: Path) -> None:
    ports = [free_port(), free_port(), free_port()]
    urls = {n: f"http://127.0.0.1:{ports[n // 2]}" for n in range(4)}
    idle = [f"http://127.0.0.1:{ports[2]}"]
    ours, theirs = [FakeOwner(0), FakeOwner(1)], [FakeOwner(2), FakeOwner(3, begins=False)]

    async def story() -> None:
        async with (
            running_server(tmp_path, Owned(*ours), urls, "w1", ports[0], idle_urls=idle) as first,
            running_server(tmp_path, Owned(*theirs), urls, "w2", ports[1], idle_urls=idle) as second,
            running_server(tmp_path, Owned(), urls, "w3", ports[2], idle_urls=idle),
        ):
            listed = await list_rules(first)
            assert in_force(listed) == [(FIRST, None)] * 4
            assert {(found["instance"], found["newest"]) for found in listed["workers"]} == {
                ("w1", NEWEST),
                ("w2", NEWEST),
                ("w3", NEWEST),
            }
            for worker in listed["workers"]:
                assert abs(worker.pop("time_ms") - time.time() * 1_000) < 60_000
                assert worker["release"]
                assert worker["core"] == core_build()
                assert worker["settings"]["SESSIONARY_SIGNING_KEYS"] == KEYS.fingerprint()
                assert len(worker["settings"]["SESSIONARY_API_TOKENS"]) == 8
                assert worker["settings"]["SESSIONARY_OUTAGE_MS"] == 5_000
            again = await list_rules(second)
            assert [{**worker, "time_ms": None} for worker in again["workers"]] == [
                {**worker, "time_ms": None} for worker in listed["workers"]
            ]
            assert again["partitions"] == listed["partitions"]
            answer = await activate(first)
            assert answer.status == 200
            assert in_force(answer.body) == [(NEWEST, None), (NEWEST, None), (NEWEST, None), (FIRST, NEWEST)]
            assert answer.body["partitions"][3]["principal"] == "on-call"
            assert (await activate(second)).status == 200  # harmless

    asyncio.run(story())
    assert all(owner.requests == [RulesRequest(SECOND_RULES, "on-call")] * 2 for owner in (*ours, *theirs))


def test_rules_are_not_activated_while_a_worker_may_not_know_them(tmp_path: Path) -> None:
    owner, away = FakeOwner(0), f"http://127.0.0.1:{free_port()}"

    async def story() -> None:
        async with old_worker() as old:
            for other, reported in (
                (old, "the worker answers 404"),
                (away, "ClientConnectorError"),
                ("http://x:0", "no contr"),
            ):
                async with running_server(tmp_path, Owned(owner), idle_urls=[other]) as server:
                    answer = await activate(server)
                    assert (answer.status, answer.body["reason"]) == (409, "unsupported_rules")
                    assert answer.is_problem
                    assert f"{other} (" in answer.body["detail"]
                    assert reported in answer.body["detail"]
                    listed = await list_rules(server)
                    assert [found["newest"] for found in listed["workers"] if found["url"] == other] == [None]

    asyncio.run(story())
    assert owner.requests == []


@pytest.mark.parametrize(
    ("owners", "reported"),
    [
        ([FakeOwner(0)], "partition 1 is unassigned"),
        ([FakeOwner(0), FakeOwner(1, Halted("log_gap", "gone"))], "partition 1 is halted: log_gap: gone"),
        ([FakeOwner(0), FakeOwner(1, opened=False)], "partition 1 is opening"),
    ],
)
def test_rules_begin_in_all_partitions_or_in_none(tmp_path: Path, owners: list[FakeOwner], reported: str) -> None:
    async def story() -> None:
        async with running_server(tmp_path, Owned(*owners, FakeOwner(2), FakeOwner(3))) as server:
            answer = await activate(server)
            assert (answer.status, answer.body["reason"]) == (409, "partitions_not_open")
            assert answer.body["detail"].endswith(f"not all are open: {reported}")

    asyncio.run(story())
    assert all(owner.requests == [] for owner in owners)


def test_only_known_and_newer_rules_are_activated(tmp_path: Path) -> None:
    owners = [FakeOwner(partition) for partition in range(4)]

    async def story() -> None:
        async with running_server(tmp_path, Owned(*owners)) as server:
            for body, status, reason in (
                (b'{"version": 99}', 409, "unknown_rules"),
                (b'{"version": "2"}', 400, "invalid_value"),
                (b'{"version": true}', 400, "invalid_value"),
                (b"{}", 400, "invalid_value"),
                (b"no JSON", 400, "invalid_value"),
                (b"[1]", 400, "invalid_value"),
                (b'{"version": 2, "finished_run_days": 0}', 400, "invalid_value"),
                (b'{"version": 2, "finished_run_days": 3651}', 400, "invalid_value"),
                (b'{"version": 2, "finished_run_days": "30"}', 400, "invalid_value"),
                (b'{"version": 2, "quotas": 1}', 400, "invalid_value"),
                (b'{"version": 2, "resume_ms": 0}', 400, "invalid_value"),
                (b'{"version": 2, "resume_ms": 315360000001}', 400, "invalid_value"),
                (b'{"version": 2, "session_quotas": "yes"}', 400, "invalid_value"),
                (b'{"version": 2, "token_quotas": 1}', 400, "invalid_value"),
            ):
                answer = await server.ask(RULES, b"Bearer op", b"POST", body=body)
                assert (answer.status, answer.body["reason"]) == (status, reason)
            assert all(owner.requests == [] for owner in owners)
            assert (await activate(server, NEWEST_RULES.version)).status == 200  # they are in force
            assert (await activate(server)).status == 200
            answer = await activate(server, NEWEST_RULES.version)
            assert (answer.status, answer.body["reason"]) == (409, "later_rules")

    asyncio.run(story())


def test_for_how_long_finished_runs_are_kept_is_activated_with_the_rules_and_stays(tmp_path: Path) -> None:
    ports = [free_port(), free_port()]
    urls = {n: f"http://127.0.0.1:{ports[n // 2]}" for n in range(4)}
    ours, theirs = [FakeOwner(0), FakeOwner(1)], [FakeOwner(2), FakeOwner(3)]

    def kept(answer: ApiResponse) -> list[tuple[Any, Any]]:
        assert answer.status == 200, answer
        return [(found["rules"], found["finished_run_days"]) for found in answer.body["partitions"]]

    async def story() -> None:
        async with (
            running_server(tmp_path, Owned(*ours), urls, "w1", ports[0]) as first,
            running_server(tmp_path, Owned(*theirs), urls, "w2", ports[1]) as second,
        ):
            assert kept(await activate(first)) == [(NEWEST, 30)] * 4
            assert kept(await activate(first, finished_run_days=90)) == [(NEWEST, 90)] * 4
            assert kept(await activate(second)) == [(NEWEST, 90)] * 4
            assert kept(await activate(second, finished_run_days=None)) == [(NEWEST, 90)] * 4

    asyncio.run(story())


def test_for_how_long_a_failed_run_may_be_resumed_is_activated_with_the_rules_and_stays(tmp_path: Path) -> None:
    owners = [FakeOwner(partition) for partition in range(4)]

    def found(answer: ApiResponse) -> list[tuple[Any, Any]]:
        assert answer.status == 200, answer
        return [(one["resume_ms"], one["finished_run_days"]) for one in answer.body["partitions"]]

    async def story() -> None:
        async with running_server(tmp_path, Owned(*owners)) as server:
            assert found(await activate(server)) == [(86_400_000, 30)] * 4
            assert found(await activate(server, resume_ms=60_000)) == [(60_000, 30)] * 4
            assert found(await activate(server, finished_run_days=90)) == [(60_000, 90)] * 4

    asyncio.run(story())


@pytest.mark.parametrize("method", [b"GET", b"POST"])
def test_the_rules_need_the_role_operator(tmp_path: Path, method: bytes) -> None:
    async def story() -> None:
        async with running_server(tmp_path, Owned(FakeOwner(0))) as server:
            assert (await server.ask(RULES, None, method)).status == 401
            assert (await server.ask(RULES, b"Bearer token", method)).status == 403

    asyncio.run(story())


def test_a_worker_that_may_have_lost_its_group_activates_nothing(tmp_path: Path) -> None:
    owner = FakeOwner(0)

    async def story() -> None:
        async with running_server(tmp_path, Owned(owner), heartbeat_age_s=7.0) as server:  # the time-out is 6 s
            answer = await activate(server)
            assert (answer.status, answer.body["reason"]) == (503, "not_ready")

    asyncio.run(story())
    assert owner.requests == []


def test_a_worker_that_is_asked_by_another_answers_for_itself_only(tmp_path: Path) -> None:
    owner = FakeOwner(2)

    async def story() -> None:
        async with running_server(tmp_path, Owned(owner), idle_urls=["http://away:0"]) as server:
            for method in (b"GET", b"POST"):
                answer = await server.ask(
                    RULES, b"Bearer op", method, b"Sessionary-Routed: w2\r\n", json.dumps({"version": NEWEST}).encode()
                )
                assert [found["partition"] for found in answer.body["partitions"]] == [2]
                assert [found["instance"] for found in answer.body["workers"]] == ["w1"]

    asyncio.run(story())
    assert len(owner.requests) == 1


def test_quotas_are_turned_on_with_the_rules_and_stay(tmp_path: Path) -> None:
    owners = [FakeOwner(partition) for partition in range(4)]

    def found(answer: ApiResponse) -> list[tuple[Any, Any]]:
        assert answer.status == 200, answer
        return [(one["quotas"], one["finished_run_days"]) for one in answer.body["partitions"]]

    async def story() -> None:
        async with running_server(tmp_path, Owned(*owners)) as server:
            assert found(await activate(server)) == [(False, 30)] * 4
            assert found(await activate(server, quotas=True)) == [(True, 30)] * 4
            assert found(await activate(server, finished_run_days=90)) == [(True, 90)] * 4
            assert found(await activate(server, quotas=False)) == [(False, 90)] * 4

    asyncio.run(story())


def test_quotas_of_sessions_and_of_tokens_are_turned_on_for_themselves(tmp_path: Path) -> None:
    owners, workers = [FakeOwner(partition) for partition in range(4)], [0]

    def found(answer: ApiResponse) -> list[tuple[Any, Any, Any]]:
        assert answer.status == 200, answer
        return [(one["quotas"], one["session_quotas"], one["token_quotas"]) for one in answer.body["partitions"]]

    async def story() -> None:
        async with running_server(tmp_path, Owned(*owners), count_quotas=lambda _: workers[0]) as server:
            for name in ("session_quotas", "token_quotas"):
                assert (await activate(server, **{name: True})).body["reason"] == "no_quota_worker"
            workers[0] = 1
            assert found(await activate(server, session_quotas=True)) == [(False, True, False)] * 4
            assert found(await activate(server, quotas=True)) == [(True, True, False)] * 4
            assert found(await activate(server, token_quotas=True)) == [(True, True, True)] * 4
            assert found(await activate(server, session_quotas=False)) == [(True, False, True)] * 4
            assert found(await activate(server, token_quotas=False)) == [(True, False, False)] * 4

    asyncio.run(story())


def count_nothing(settings: KafkaSettings) -> int:
    raise Lost(f"Kafka does not tell of {settings.topic_prefix}.quotas")


def test_quotas_are_turned_on_only_while_a_worker_of_that_role_runs(tmp_path: Path) -> None:
    owners = [FakeOwner(partition) for partition in range(4)]
    workers = [0]

    async def story() -> None:
        async with running_server(tmp_path, Owned(*owners), count_quotas=lambda _: workers[0]) as server:
            answer = await activate(server, quotas=True)
            assert (answer.status, answer.body["reason"]) == (409, "no_quota_worker")
            assert answer.body["detail"].startswith("no worker of the role quotas runs")
            assert all(owner.requests == [] for owner in owners)
            for settings in ({}, {"quotas": False}):  # these need none
                answer = await activate(server, **settings)
                assert (answer.status, answer.body["quota_workers"]) == (200, None)
            workers[0] = 2
            assert (await activate(server, quotas=True)).body["quota_workers"] == 2
            assert (await list_rules(server))["quota_workers"] == 2

    asyncio.run(story())


def test_quotas_wait_until_kafka_tells_whether_a_worker_of_that_role_runs(tmp_path: Path) -> None:
    owner = FakeOwner(0)

    async def story() -> None:
        async with running_server(tmp_path, Owned(owner), partitions=1, count_quotas=count_nothing) as server:
            answer = await activate(server, quotas=True)
            assert (answer.status, answer.body["reason"]) == (503, "not_ready")
            assert answer.body["detail"] == "Kafka does not tell of sessionary.quotas"
            assert owner.requests == []
            assert (await list_rules(server))["quota_workers"] is None  # the rest is reported all the same

    asyncio.run(story())
