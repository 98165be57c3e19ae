"""The machine of steps: what may happen to a step of a run, and what comes of it.

    transitions    every transition of a step as one value
    facts          what can happen to a step, and what its session hears of it
    judge          the judgement of an event that names a step
    machine        the rows and their clock as a `Machine`

The session's machine asks `judge`, after neither the session nor the run has anything against the
event. Only an attempt with a limit has a clock. A step vanishes with its run. Begin with
`transitions`.
"""
