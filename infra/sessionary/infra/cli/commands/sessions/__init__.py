"""Commands that read sessions.

    lookup         finds a session or run by its id; reads --since; follows rows
    lists          sessions; the last turns of one; its committed changes
    timeline       `session timeline`: the story of one session, as lines or as a page
    runs           `run list`, `show`, `resume`: runs, and the effect of resuming one
    comparing      `run compare`: two runs, or two sessions, side by side
    decisions      `session why`: why a session's agent acted
    simulate       `session simulate`: what another result in one event would have changed
    following      `session follow`: each committed change of one session
    past           `session at`, `diff`: a session's state at a point of its history

`session simulate` folds the log of Kafka. The others read ClickHouse; `session show` and the page
also ask the processor. `session follow`, `session conversation` and `run` ask it alone.
"""
