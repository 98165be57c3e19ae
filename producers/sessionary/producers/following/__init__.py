"""Following a session: its state as it is committed, and each change of it, whoever makes it.

follower          `SessionFollower`: yields the states; opens a lost stream again
async_follower    `AsyncSessionFollower`: the same for asyncio
"""
