"""The rules, pure: no clock, no I/O, no log. A style test holds this for the whole folder.

    model            the values that pass through: records, places, outcomes
    machine          the protocol of a machine; arrivals, decisions, facts applied to rows
    clock            a partition's clock: time is in the log
    timers           which rows are due
    sequencing       sequence numbers and epochs
    trail            audit numbers, audit records and rejected records
    verdict          the first checks of every record
    committed        a partition's state after the last acknowledged transaction
    batch_rows       the rows that a batch touches
    overlay          one batch on top of it
    partition        a partition's state: load, begin, merge
    recent_outcomes  what became of the last records
    dependants/      what the rows that depend on a session share
    gravestones/     packed gravestones, in chunks
    session/         the session's machine
    run/             the machine of runs
    step/            the machine of steps
    call/            the machine of reserved tool calls
    artifact/        the machine of artifacts
    message/         the machine of the turns of a conversation
    agent/           the machine of a session's agents
    quota/           the machine of tenants' quotas, over a log of its own

A record passes `verdict`, then the machine of its family; `overlay` collects what comes of it.
"""
