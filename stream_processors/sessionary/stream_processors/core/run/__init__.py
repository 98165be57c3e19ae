"""The machine of runs: what may happen to a run, and what comes of it.

    transitions    every transition of a run as one value
    clocks         when the clock of a run is due
    facts          what can happen to a run
    claims         the claim of a run to its tenant's quota
    judge          the judgement of an event that names a run
    effects        what each fact does to the row
    task_index     which sessions the tasks of a partition belong to
    machine        all of it as a `Machine`

The session's machine decides on every event, also on those of runs: it asks `judge`, after the
session itself has nothing against the event. What comes of it reaches the run's row as `ForRow`.
Begin with `transitions`.
"""
