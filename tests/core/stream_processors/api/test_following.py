"""What a follower of a session is reported, and when; over HTTP, without a broker."""

import asyncio
import json
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientTimeout

from sessionary.stream_processors.access import Caller
from sessionary.stream_processors.api import following as follow_pages
from sessionary.stream_processors.api.problems import Problem
from sessionary.stream_processors.api.session_poll import Reader
from tests.core.stream_processors.api.api_server import Server, running_server
from tests.core.stream_processors.api.follow_rig import FollowRig, following
from tests.support.event_factory import EventFactory


def follow(folder: Path, check: Callable[[FollowRig, Server], Awaitable[None]], **options: Any) -> None:
    """Let `check` follow a session of a worker that owns the one partition."""

    async def serve() -> None:
        rig = FollowRig()
        async with running_server(folder, rig.assignment, partitions=1, **options) as server:
            await check(rig, server)

    asyncio.run(serve())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


def followers(server: Server, source: str = "own") -> float | None:
    return server.metrics.registry.get_sample_value("sessionary_processor_followers", {"source": source})


def test_the_state_is_reported_at_once_and_after_each_committed_change(tmp_path: Path) -> None:
    async def check(rig: FollowRig, server: Server) -> None:
        async with following(server, rig.path) as reader:
            assert (reader.answer.status, reader.answer.content_type) == (200, "text/event-stream")
            first = await reader.read()
            assert first is not None
            assert (first.name, first.place) == ("state", f"0:{rig.rig.next_offset - 1}")
            page = await server.ask(rig.path.encode())
            assert first.document == page.body
            rig.update()
            rig.owner.commit()
            second = await reader.read()
            assert second is not None
            assert (second.document["version"], json.loads(second.document["state_json"])["n"]) == (2, 2)
            rig.send("session_paused")
            rig.owner.commit()
            third = await reader.read()
            assert third is not None
            assert (third.document["state"], third.place) == ("Paused", f"0:{rig.rig.next_offset - 1}")

    follow(tmp_path, check)


def test_signs_of_life_rejections_and_other_sessions_make_no_message(tmp_path: Path) -> None:
    async def check(rig: FollowRig, server: Server) -> None:
        other = EventFactory("other")
        rig.rig.start(other)
        async with following(server, rig.path) as reader:
            assert await reader.read_versions(1) == [1]
            for _ in range(3):
                rig.beat()
                rig.owner.commit()
                await asyncio.sleep(0)
            assert rig.rig.send(rig.agent, "session_started").startswith("rejected")
            rig.owner.commit()
            rig.rig.send(other, "session_paused")
            rig.rig.tick()
            rig.owner.commit()
            rig.update()
            rig.owner.commit()
            message = await reader.read()
            assert message is not None
            assert (message.name, message.document["version"]) == ("state", 2)
            assert message.place == f"0:{rig.rig.next_offset - 1}"

    follow(tmp_path, check)


def test_changes_that_are_committed_together_are_one_message(tmp_path: Path) -> None:
    async def check(rig: FollowRig, server: Server) -> None:
        async with following(server, rig.path) as one, following(server, rig.path) as other:
            assert await one.read_versions(1) == await other.read_versions(1) == [1]
            for _ in range(5):
                rig.update()
            rig.owner.commit()
            assert await one.read_versions(6) == await other.read_versions(6) == [6]

    follow(tmp_path, check)


def test_what_is_folded_but_not_committed_is_not_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow_pages, "KEEP_ALIVE_S", 0.02)

    async def check(rig: FollowRig, server: Server) -> None:
        async with following(server, rig.path) as reader:
            assert await reader.read_versions(1) == [1]
            batch = rig.rig.fold.begin()
            rig.owner.is_readable = False  # as before the first transaction of an assignment
            rig.owner.notifications.notify_commit({rig.agent.key.encoded(): None})
            messages = [await reader.read() for _ in range(3)]
            assert [message and message.name for message in messages] == [None, None, None]
            del batch
            rig.owner.is_readable = True
            rig.update()
            rig.owner.commit()
            assert await reader.read_versions(2) == [2]

    follow(tmp_path, check)


def test_a_slow_reader_skips_states_and_gets_the_newest(tmp_path: Path) -> None:
    async def check(rig: FollowRig, server: Server) -> None:
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        slow.connect(("127.0.0.1", int(server.url.rpartition(":")[2])))
        slow.sendall(f"GET {rig.path}/follow HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer token\r\n\r\n".encode())
        await until(lambda: followers(server) == 1)
        async with following(server, rig.path) as quick:
            assert await quick.read_versions(1) == [1]
            for _ in range(40):
                rig.update("x" * 500_000)
                rig.owner.commit()
                await quick.read_versions(rig.version)
        slow.setblocking(False)
        loop, found = asyncio.get_running_loop(), b""
        async with asyncio.timeout(60):
            while b'\\"n\\": 41' not in found:
                found += await loop.sock_recv(slow, 1 << 20)
        assert found.count(b"event: state") < 30
        slow.close()

    follow(tmp_path, check)


def test_a_reader_that_takes_nothing_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow_pages, "WRITE_S", 0.2)

    async def check(rig: FollowRig, server: Server) -> None:
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        slow.connect(("127.0.0.1", int(server.url.rpartition(":")[2])))
        slow.sendall(f"GET {rig.path}/follow HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer token\r\n\r\n".encode())
        await until(lambda: followers(server) == 1)
        for _ in range(60):
            rig.update("x" * 500_000)
            rig.owner.commit()
            await asyncio.sleep(0.01)
            if followers(server) == 0:
                break
        await until(lambda: followers(server) == 0)
        assert not rig.is_watched
        slow.close()

    follow(tmp_path, check)


def test_a_follower_that_resumes_is_notified_of_nothing_older(tmp_path: Path) -> None:
    async def check(rig: FollowRig, server: Server) -> None:
        async def read_first(query: str, header: str | None) -> int:
            headers = {} if header is None else {"Last_Event_ID": header}
            async with following(server, rig.path, query, **headers) as reader:
                message = await reader.read()
                assert message is not None
                return int(message.document["version"])

        for by_header, query in ((True, ""), (False, "?after={}"), (True, "?after=0:0")):
            ahead = f"0:{rig.rig.next_offset}"  # of the next record
            reading = asyncio.create_task(read_first(query.format(ahead), ahead if by_header else None))
            await asyncio.sleep(0.05)
            assert not reading.done()
            rig.update()
            rig.owner.commit()
            assert await reading == rig.version
        ahead = f"0:{rig.rig.next_offset}"
        async with following(server, rig.path, "?wait_ms=0", Last_Event_ID=ahead) as reader:
            assert (reader.answer.status, reader.answer.headers["Retry-After"]) == (503, "1")
        for malformed in ("x", "1:5", "0:", "0:-1"):
            async with following(server, rig.path, Last_Event_ID=malformed) as reader:
                assert reader.answer.status == 400

    follow(tmp_path, check)


def test_the_archiving_ends_a_stream_for_good(tmp_path: Path) -> None:
    async def check(rig: FollowRig, server: Server) -> None:
        async with following(server, rig.path) as reader:
            assert await reader.read_versions(1) == [1]
            rig.archive()
            rig.owner.commit()
            message = await reader.read()
            assert message is not None
            assert message.name == "end"
            assert await reader.read() is None
        answer = await server.ask(rig.path.encode() + b"/follow")
        assert (answer.status, answer.body["reason"]) == (410, "session_archived")

    follow(tmp_path, check)


def test_a_lost_partition_ends_a_stream_without_an_end(tmp_path: Path) -> None:
    async def check(rig: FollowRig, server: Server) -> None:
        async with following(server, rig.path) as reader:
            assert await reader.read_versions(1) == [1]
            rig.owner.notifications.end()
            assert await reader.read() is None
        await until(lambda: followers(server) == 0)
        assert not rig.is_watched

    follow(tmp_path, check)


def test_a_worker_that_may_have_lost_its_group_ends_its_streams(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow_pages, "KEEP_ALIVE_S", 0.02)

    async def check(rig: FollowRig, server: Server) -> None:
        async with following(server, rig.path) as reader:
            assert await reader.read_versions(1) == [1]
            comment = await reader.read()
            assert comment is not None
            assert comment.name is None
            rig.owner.committed_s = time.monotonic() - 1_000
            while await reader.read() is not None:
                continue
        answer = await server.ask(rig.path.encode() + b"/follow")
        assert (answer.status, answer.body["reason"]) == (503, "not_ready")

    follow(tmp_path, check, heartbeat_age_s=1_000.0)


def test_a_token_that_is_withdrawn_ends_its_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow_pages, "KEEP_ALIVE_S", 0.02)

    def reject(*_: object) -> str:
        raise Problem(401, "unauthorized", "Unauthorized", "the token is not known")

    async def check(rig: FollowRig, server: Server) -> None:
        async with following(server, rig.path) as reader:
            assert await reader.read_versions(1) == [1]
            monkeypatch.setattr(follow_pages, "require_reader", reject)
            while await reader.read() is not None:
                continue
        await until(lambda: followers(server) == 0)

    follow(tmp_path, check)


@pytest.mark.parametrize("now", [{"tenant": "zeta"}, {"tenant": "acme", "user": "u2"}])
def test_a_token_that_is_given_to_another_reader_ends_its_streams(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, now: dict[str, str]
) -> None:
    monkeypatch.setattr(follow_pages, "KEEP_ALIVE_S", 0.02)
    other = Caller.model_validate(now)

    async def check(rig: FollowRig, server: Server) -> None:
        async with following(server, rig.path) as reader:
            assert await reader.read_versions(1) == [1]
            monkeypatch.setattr(follow_pages, "require_reader", lambda *_: Reader(other, f"{other.tenant}"))
            async with asyncio.timeout(60):
                while await reader.read() is not None:
                    continue

    follow(tmp_path, check)


def test_a_busy_session_has_keep_alives_and_looks_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Heartbeats, which wake a stream and tell nothing, must not postpone them."""
    monkeypatch.setattr(follow_pages, "KEEP_ALIVE_S", 0.1)

    async def check(rig: FollowRig, server: Server) -> None:
        async def beat() -> None:
            while True:
                rig.beat()
                rig.owner.commit()
                await asyncio.sleep(0.01)

        async with following(server, rig.path) as reader:
            assert await reader.read_versions(1) == [1]
            beating = asyncio.create_task(beat())
            messages = [await reader.read() for _ in range(2)]
            beating.cancel()
            assert [message and message.name for message in messages] == [None, None]

    follow(tmp_path, check)


def test_too_many_followers_are_asked_to_come_later(tmp_path: Path) -> None:
    async def check(rig: FollowRig, server: Server) -> None:
        async with following(server, rig.path) as one, following(server, rig.path):
            assert followers(server) == 2
            answer = await server.ask(rig.path.encode() + b"/follow")
            assert (answer.status, answer.body["reason"], answer.is_problem) == (503, "too_many_followers", True)
            assert "SESSIONARY_API_FOLLOWERS_MAX" in answer.body["detail"]
            assert int(answer.headers["retry-after"]) > 0
            assert (await server.ask(rig.path.encode())).status == 200
            one.answer.close()
            rig.update()
            rig.owner.commit()  # which shows that the reader has left
            await until(lambda: followers(server) == 1)
            async with following(server, rig.path) as third:
                assert await third.read_versions(2) == [2]

    follow(tmp_path, check, followers_max=2)


def test_unknown_foreign_and_unauthorised_are_answered_as_for_the_session(tmp_path: Path) -> None:
    async def check(rig: FollowRig, server: Server) -> None:
        foreign, unknown = EventFactory("foreign", "zeta"), EventFactory("unknown")
        rig.rig.start(foreign)
        rig.owner.commit()
        for agent in (foreign, unknown):
            path = f"/v1/sessions/{agent.key.session_id}"
            page, follower = await server.ask(path.encode()), await server.ask(path.encode() + b"/follow")
            assert (follower.status, follower.body) == (page.status, page.body)
            assert (follower.status, follower.body["reason"]) == (404, "unknown_session")
        assert [access.reason_code for access in rig.owner.accesses] == ["unknown_session"]
        follow_path = rig.path.encode() + b"/follow"
        assert (await server.ask(follow_path, auth=None)).status == 401
        assert (await server.ask(follow_path, auth=b"Bearer op")).status == 403
        assert (await server.ask(follow_path + b"?tenant=zeta")).status == 403
        assert (await server.ask(b"/v1/sessions/%07/follow")).status == 400
        assert (await server.ask(follow_path, method=b"HEAD")).status == 405
        assert followers(server) == 0
        assert not rig.is_watched

    follow(tmp_path, check)


def test_the_end_of_the_worker_ends_its_streams_at_once(tmp_path: Path) -> None:
    async def serve() -> None:
        rig = FollowRig()
        async with running_server(tmp_path, rig.assignment, partitions=1) as server:
            url, client = server.url, server.client
            headers = {"Authorization": "Bearer token"}
            timeout = ClientTimeout(total=None)
            answer = await client.get(f"{url}{rig.path}/follow", headers=headers, timeout=timeout)
            assert b"event: state" in await answer.content.readuntil(b"\n\n")
            stopping = asyncio.create_task(_read_rest(answer))
        assert await asyncio.wait_for(stopping, 60) == b""
        assert not rig.is_watched

    async def _read_rest(answer: Any) -> bytes:
        return bytes(await answer.content.read())

    async def bounded() -> None:
        await asyncio.wait_for(serve(), 40)  # aiohttp waits up to 60 s for answers under way

    asyncio.run(bounded())
