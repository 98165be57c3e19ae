"""The rules, pure: no clock, no I/O, no log. A style test holds this for the whole folder.

    model            the values that pass through: records, places, decisions, outcomes
    rows             a family of rows: their bytes and their clock
    judge            who reads and decides; arrivals, and facts applied to a row
    family           rows that depend on a session; what a family of children is
    families         all of them: a new one is one line
    clock            a partition's clock: time is in the log; which rows are due
    sequencing       sequence numbers and epochs
    trail            audit numbers, audit records and rejected records
    committed        a partition's state after the last acknowledged transaction
    uncommitted_batch  one batch on top of it
    partition        a partition's state: load, begin, merge
    past             one session's state at a point of the log
    tombstones      packed tombstones, in chunks
    session/         the judge of sessions, and their rows
    run/             runs of sessions
    children/        steps, calls, artifacts, messages and agents, a module each
    quota/           the judge of tenants' quotas, over a separate log

The judge reads a record and decides on it; `uncommitted_batch` collects the results.
"""
