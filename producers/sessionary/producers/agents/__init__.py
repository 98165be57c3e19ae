"""The agents of one session: their tasks, what they share, and hand-overs between them.

    work              an agent's tasks and results: their events, errors and stores
    agent             one agent of a session: its tasks and its view
    async_agent       the same for asyncio, made by `generation.async_faces`

The processor decides what an agent sees, by the roles in its record.
"""
