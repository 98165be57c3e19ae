"""Sessions: what may happen to a session, and what comes of it.

    clocks         when each clock of a session is due
    transitions    every transition as one value; which events a state accepts
    judge          reads a record, and decides on it in a fixed order
    accepted       events without a change of state
    values         checks of an event's values: names, numbers, bounds, limits, snapshots
    children       what an event is for the run and the child that it names
    people         what people do: operators, questions and answers
    admission      the quotas of a session's tenant
    migration      a session that moves to another service
    facts          what can happen to a session
    effects        what each fact does to the row
    report         what each fact leaves on the audit, rejected and cleanup topics
    row_size       keeps a row within the changelog's limit
    rows           rows of sessions, and their clocks

Begin with `transitions`.
"""
