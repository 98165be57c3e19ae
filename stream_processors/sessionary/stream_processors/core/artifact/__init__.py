"""The machine of artifacts: what may happen to an artifact, and what comes of it.

    transitions    every transition of an artifact as one value
    facts          what can happen to an artifact
    judge          the judgement of an event that names an artifact
    machine        the rows as a `Machine`

The session's machine asks `judge`, after neither the session nor the run has anything against the
event. An artifact has no clock. It vanishes with its run, or with its session if it is of no run.
Begin with `transitions`.
"""
