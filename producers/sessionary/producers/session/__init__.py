"""One session as its agent uses it: `Session`, and `AsyncSession` for asyncio.

In the order in which one reads them:

    session         `Session`: all public verbs, each a line, in one class and five groups
    async_session   `AsyncSession`, made of that text by `generation.async_faces`
    async_opening   the part of `AsyncSession` that is written by hand
    view            the local view: state, epoch, version, content; under one lock
    core            the core: view, heartbeats, sending of events, adoption of answers
    lifecycle       start, pause, resume, error, end
    verdicts        waiting for a verdict; ending a session although one is awaited
    checkpoints     checkpoints with data: saved and loaded
    transaction     a transaction on the content; rollback of the session to a snapshot
    updates         updates of the content, snapshots, and the agents that share the session
    decisions       records decisions, and makes them the cause of what follows
    snapshots       snapshots around tool calls, and the cache of their bases
    runs            runs, and tasks for workers; reads the processor's records
    turn            a turn: one exchange with the user, between which the session waits
    conversation    turns, read from the last; questions to people, and their answers
    migration       the steps of source and target
    polled          makes a core, which adopts the findings of polls
    heartbeat       one timer thread for all sessions
    pending_verdict  the event whose verdict a session waits for
"""
