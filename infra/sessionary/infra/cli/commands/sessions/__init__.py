"""Commands that tell of sessions.

    lookup         finds one session, in ClickHouse and in the processor
    lists          `session list` and `session show`
    timeline       `session timeline`: the story of one session, as lines or as a page
    following      `session follow`: each committed change of one session
    conversation   `session conversation`: the last turns of one session
    runs           `run list`, `show`, `resume`: runs, and what resuming one would do
    since          the option `--since`
    follow         the option `--follow` of lists

They read ClickHouse; `session show` and the page also ask the processor. `session follow`,
`session conversation` and `run` ask it alone.
"""
