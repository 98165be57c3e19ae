"""An owner of a partition tells who follows a row: of each commit that touches it, of the end."""

import asyncio

from sessionary.stream_processors.core.model import LogRecord
from tests.core.stream_processors.runtime.owner_doubles import FakeRecovery, OwnerBench
from tests.support.event_factory import TICK, EventFactory


def test_a_commit_that_touches_a_followed_row_wakes_its_reader_and_no_other(recovery: FakeRecovery) -> None:
    async def story() -> None:
        bench = OwnerBench(partitions=1, commit_interval_ms=0, tick_commit_interval_ms=0)
        recovery.gate.release()
        bench.assignment.take_assignment([0])
        owner = bench.assignment.owners[0]
        await bench.seen(lambda: owner.is_open)
        one, other = EventFactory("one"), EventFactory("other")
        created = LogRecord(0, 1_000, one.key.encoded(), one.event_bytes("session_created"))
        with (
            owner.notifications.watch_row(one.key.encoded()) as watch,
            owner.notifications.watch_row(other.key.encoded()) as idle,
        ):
            owner.offer_records(0, [created])
            assert await watch.wait(30)
            assert (owner.commits, owner.is_readable) == (1, True)
            assert one.key.encoded() in owner.state.rows  # what is reported is merged already
            owner.offer_records(1, [LogRecord(1, 1_001, None, TICK)])
            await bench.seen(lambda: owner.commits == 2)
            assert [await watch.wait(0), await idle.wait(0)] == [False, False]
            assert not owner.notifications.is_over
            bench.assignment.take_assignment([])
            assert owner.notifications.is_over
            assert [await watch.wait(0), await idle.wait(0)] == [True, True]
        await bench.assignment.close()

    asyncio.run(story())
