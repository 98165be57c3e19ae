"""The agents of one session: their tasks, what they share, and hand-overs between them.

    errors            what only agents raise
    work              what one agent does, for both faces
    agent             one agent of a session: its tasks and its view
    results           results as texts of events, or as artifacts
    async_agent       the same for asyncio, made by `generation.async_faces`

The processor decides what an agent sees, by the roles in its record.
"""
