"""Runs recorded agent runs as sessions against a stack, and accounts for every event afterwards.

    runs             reads recorded runs from NDJSON (a sample of 60 is part of the package)
    plan             pure: what each session does, and when
    actions          one action of a plan, in the client's verbs
    broken_events    records that no client would send
    plan_runner      carries a plan out: clients, threads, journals
    ledger           the plan and the journals, as tables in ClickHouse
    queries          the SQL behind the figures
    wait             waits until the pipeline has finished a demo run
    report           the figures, computed by ClickHouse from rows
    demo_run         a whole demo run, from the plan to the report

`sessionary demo` and `sessionary demo load` call `demo_run`, which uses all the others.
"""
