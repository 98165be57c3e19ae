"""Who is woken by a commit, and who is not."""

import asyncio
from collections.abc import Awaitable, Callable

from sessionary.stream_processors.runtime.readers.commit_news import CommitNews


def run(check: Callable[[CommitNews], Awaitable[None]]) -> None:
    async def begin() -> None:
        await check(CommitNews())

    asyncio.run(begin())


def test_only_who_follows_a_row_that_a_commit_touched_is_woken() -> None:
    async def check(news: CommitNews) -> None:
        with news.watch_row(b"a") as one, news.watch_row(b"a") as same, news.watch_row(b"b") as other:
            news.tell_commit({b"a": 1, b"c": 2})
            assert [await watch.wait(0) for watch in (one, same, other)] == [True, True, False]
            assert [await watch.wait(0) for watch in (one, same, other)] == [False, False, False]

    run(check)


def test_many_commits_wake_a_reader_once() -> None:
    async def check(news: CommitNews) -> None:
        with news.watch_row(b"a") as watch:
            for n in range(5):
                news.tell_commit({b"a": n})
            assert [await watch.wait(0), await watch.wait(0)] == [True, False]

    run(check)


def test_a_row_that_none_follows_any_more_is_forgotten() -> None:
    async def check(news: CommitNews) -> None:
        with news.watch_row(b"a"):
            with news.watch_row(b"a"):
                assert {key: len(watches) for key, watches in news._watches.items()} == {b"a": 2}
            assert {key: len(watches) for key, watches in news._watches.items()} == {b"a": 1}
        assert news._watches == {}
        news.tell_commit({b"a": 1})

    run(check)


def test_the_end_wakes_all() -> None:
    async def check(news: CommitNews) -> None:
        waiting = asyncio.create_task(news.wait())
        with news.watch_row(b"a") as watch:
            await asyncio.sleep(0)
            assert not news.is_over
            news.end()
            assert news.is_over
            assert await watch.wait(0)
        await asyncio.wait_for(waiting, 20)

    run(check)
