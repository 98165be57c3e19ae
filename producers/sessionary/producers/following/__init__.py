"""Following a session: its state as it is committed, and each change of it, by any process.

The streams beneath are a port, `Follows`: over HTTP in production, in memory for tests.

    follower          `SessionFollower`: yields the states; opens a lost stream again
    async_follower    `AsyncSessionFollower`: the same for asyncio
"""
