"""One session as its agent uses it: `Session`, and `AsyncSession` for asyncio.

Each of the first six adds verbs to the one before:

    handle            the local view of a session; sends events, waits for verdicts
    work              verbs for the work in a session: activity, usage, content, snapshots
    views             what it reads of the processor: execution, artifacts, whether its state agrees
    conversation      the conversation: its turns are sent, and read from the last
    life              verbs of a session's life: start, pause, resume, end; class `Session`
    async_work        properties and verbs for the work, for asyncio
    async_conversation  the verbs of views, conversation and agents for asyncio
    async_session     verbs of a session's life for asyncio; class `AsyncSession`
    collaboration/    verbs that involve others: agents, people, other services
    late_verdict      ends a session although a verdict is awaited
    pending_verdict   the event whose verdict a session waits for
    state_json        a session's content as JSON, and snapshots of it
    heartbeat         when a session beats, and one timer thread for all sessions
"""
