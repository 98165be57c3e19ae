"""Runs recorded agent runs as sessions against a stack, and accounts for every event afterwards.

    runs             reads recorded runs from NDJSON (a sample of 60 is part of the package)
    plan             pure: the actions of each session, and their times
    plan_runner      carries the plan out: its actions, and the events that are wrong
    wait             waits for rows and for lines of processes; the folders of examples
    report           the figures of a demo, and the queries for them
    demo_run         a whole demo run, from the plan to the report
    migration     moves one session through three services, and kills one of them
    replay        records agents, looks into their past, replays, forks and compares them
    workflow      kills the workflow example in the middle, and shows how it continues

`sessionary demo` and `sessionary demo load` call `demo_run`, which uses all the others.
"""
