"""Commands that tell of sessions.

    lookup         finds one session, in ClickHouse and in the processor
    lists          `sessions` and `show`
    timeline       `timeline`: the story of one session, as lines or as a page
    following      `follow`: each committed change of one session
    conversation   `conversation`: the last turns of one session
    runs           `runs` and `run`: runs, and what resuming one would do
    since          the option `--since`
    follow         the option `--follow` of lists

They read ClickHouse; `show` and the page also ask the processor. `follow`, `runs`, `run` and
`conversation` ask it alone.
"""
