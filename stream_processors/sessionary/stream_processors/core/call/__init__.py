"""The machine of reserved tool calls: what may happen to a call, and what comes of it.

    transitions    every transition of a call as one value
    judge          the judgement of an event that names a call
    facts          what can happen to a call, and what its session hears of it
    machine        the rows and their clock as a `Machine`

The session's machine asks `judge`, after neither the session nor the run has anything against the
event. A call vanishes with its run, or with its session if it is of no run. If nothing is known of
the outcome of a call with a side effect, its run waits until somebody finds out. Begin with
`transitions`.
"""
