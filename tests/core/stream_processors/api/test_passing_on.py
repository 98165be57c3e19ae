"""A follower asks a worker that does not own its session: the owner's stream is passed through."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sessionary.infra.local.ports import free_port
from sessionary.stream_processors.api import following as follow_pages
from tests.core.stream_processors.api.api_server import Server, running_server
from tests.core.stream_processors.api.follow_rig import FollowRig, following
from tests.core.stream_processors.api.test_following import followers, until
from tests.support.event_factory import EventFactory

Check = Callable[[FollowRig, Server, Server], Awaitable[None]]


def follow_by_another(folder: Path, check: Check, **of_the_owner: Any) -> None:
    """Let `check` follow by the second of two workers; the first one owns the session."""

    async def serve() -> None:
        rig, port = FollowRig(), free_port()
        none: Any = SimpleNamespace(owners={}, is_ready=True)
        urls = {0: f"http://127.0.0.1:{port}"}
        async with (
            running_server(
                folder / "w1", rig.assignment, urls=urls, port=port, instance="w1", partitions=1, **of_the_owner
            ) as owning,
            running_server(folder / "w2", none, urls=urls, instance="w2", partitions=1) as asked,
        ):
            await check(rig, owning, asked)

    asyncio.run(serve())


def test_each_change_passes_through_as_it_comes(tmp_path: Path) -> None:
    async def check(rig: FollowRig, owning: Server, asked: Server) -> None:
        async with following(asked, rig.path) as reader:
            assert reader.answer.content_type == "text/event-stream"
            assert reader.answer.headers["Cache-Control"] == "no-store"
            assert await reader.read_versions(1) == [1]
            for _ in range(5):
                rig.update()
                rig.owner.commit()
                assert await reader.read_versions(rig.version) == [rig.version]
            assert (followers(asked, "passed_on"), followers(asked), followers(owning)) == (1, 0, 1)
            rig.archive()
            rig.owner.commit()
            message = await reader.read()
            assert message is not None
            assert message.name == "end"
            assert await reader.read() is None
        await until(lambda: followers(asked, "passed_on") == 0)

    follow_by_another(tmp_path, check)


def test_the_place_to_resume_from_is_passed_on(tmp_path: Path) -> None:
    async def check(rig: FollowRig, owning: Server, asked: Server) -> None:
        ahead = f"0:{rig.rig.next_offset}"
        async with following(asked, rig.path, "?wait_ms=0", Last_Event_ID=ahead) as reader:
            assert (reader.answer.status, reader.answer.headers["Retry-After"]) == (503, "1")
        rig.update()
        rig.owner.commit()
        async with following(asked, rig.path, "?wait_ms=0", Last_Event_ID=ahead) as reader:
            assert await reader.read_versions(2) == [2]

    follow_by_another(tmp_path, check)


def test_what_the_owner_rejects_is_passed_on(tmp_path: Path) -> None:
    async def check(rig: FollowRig, owning: Server, asked: Server) -> None:
        unknown = EventFactory("unknown").key.session_id
        answer = await asked.ask(f"/v1/sessions/{unknown}/follow".encode())
        assert (answer.status, answer.body["reason"], answer.is_problem) == (404, "unknown_session", True)
        assert [access.reason_code for access in rig.owner.accesses] == ["unknown_session"]
        async with following(asked, rig.path):
            answer = await asked.ask(rig.path.encode() + b"/follow")
            assert (answer.status, answer.body["reason"]) == (503, "too_many_followers")
            assert answer.headers["retry-after"] == "5"

    follow_by_another(tmp_path, check, followers_max=1)


def test_a_stream_ends_with_that_of_the_owner(tmp_path: Path) -> None:
    async def check(rig: FollowRig, owning: Server, asked: Server) -> None:
        async with following(asked, rig.path) as reader:
            assert await reader.read_versions(1) == [1]
            rig.owner.notifications.end()
            assert await reader.read() is None

    follow_by_another(tmp_path, check)


def test_an_owner_that_falls_silent_ends_the_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow_pages, "OWNER_SILENT_S", 0.2)

    async def check(rig: FollowRig, owning: Server, asked: Server) -> None:
        async with following(asked, rig.path) as reader:
            assert await reader.read_versions(1) == [1]
            while await reader.read() is not None:
                continue
        await until(lambda: followers(asked, "passed_on") == 0)

    follow_by_another(tmp_path, check)


def test_a_reader_that_leaves_ends_both_streams(tmp_path: Path) -> None:
    async def check(rig: FollowRig, owning: Server, asked: Server) -> None:
        async with following(asked, rig.path) as reader:
            assert await reader.read_versions(1) == [1]
            reader.answer.close()

        def has_ended() -> bool:
            rig.update()  # each write is a chance to see it
            rig.owner.commit()
            return followers(asked, "passed_on") == followers(owning) == 0

        await until(has_ended)
        assert not rig.is_watched

    follow_by_another(tmp_path, check)
