"""Sessions: their transitions, the judgement of their events, and their rows.

    clocks         when each clock of a session is due
    transitions    every transition as one value; which events a state accepts
    judge          reads a record, and decides on it in a fixed order
    accepted       events without a change of state
    values         checks of an event's values: names, numbers, bounds, limits
    snapshots      their checks, their ids, and the processor's own ones
    children       the effects of an event on its run and its child
    people         actions of people: operators, questions and answers
    admission      the quotas of a session's tenant
    migration      a session that moves to another service
    open_requests  requests that are not done, which an operator has sent again
    facts          the facts of which a decision consists
    effects        the effect of each fact on the row
    report         the records of each fact on the audit, rejected and cleanup topics
    row_size       keeps a row within the changelog's limit
    rows           rows of sessions, and their clocks

Begin with `transitions`.
"""
