"""The machine of steps: what may happen to a step of a run, and what comes of it.

    transitions    every transition of a step as one value
    judge          the judgement of an event that names a step
    machine        the rows as a `Machine`

The session's machine asks `judge`, after neither the session nor the run has anything against the
event. A step has no clock, and vanishes with its run. Begin with `transitions`.
"""
