"""Sessions: what may happen to a session, and what comes of it.

    clocks         when each clock of a session is due
    transitions    every transition as one value; which events a state accepts
    limits         the check of a session's limits at its creation
    facts          what can happen to a session
    accepted       events without a change of state
    values         checks of an event's values: names, numbers, bounds, snapshots
    people/        what people do: operators, questions and answers
    admission/     a session that waits for its tenant's quota
    row_size       keeps a row within the changelog's limit
    decide         the order in which an event is checked
    effects        what each fact does to the row
    report         what each fact leaves on the audit, rejected and cleanup topics
    rows           rows of sessions, and their clocks
    children       what an event is for the run and the child that it names
    judge          all of it as a `Judge`
    migration/     a session that moves to another service

Begin with `transitions`.
"""
