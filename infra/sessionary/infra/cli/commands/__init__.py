"""The commands' functions; `cli.command_tree` names them all.

    up          up: run the local stack until Ctrl-C
    demo        demo, demo load: run recorded agent runs and account for every event
    doctor      doctor: check every part of a stack
    sql         sql: run a query
    lag         lag: how far each consumer group is behind
    sessions/   session list, show, timeline, …, run …: reads of sessions and runs
    operators/  session pause, move, …, question, call, partition: an operator's decisions
    rejected    rejected list, show, replay
    integrity   integrity check, repair: whether ClickHouse has every row, once
    admin       topics, tables, users; a stack's variables; rules of alerts
    roles       serve processor, sink, …: one process each

Each command is a function that typer calls.
"""
