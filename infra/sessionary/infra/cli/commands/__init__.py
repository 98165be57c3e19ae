"""The commands, in the order in which `sessionary --help` lists them.

    demo        demo, load: run recorded agent runs and account for every event
    up          up: run the local stack until Ctrl-C
    env         env: the variables of the local stack, for a shell
    sessions/   sessions, show, timeline: what ClickHouse knows of sessions
    rejected    rejected list, show, replay
    sql         sql: run a query
    operators/  partition, rules, unknown, artifacts: what an operator decides
    lag         lag: how far each consumer group is behind
    alerts      alerts render: alert rules for Prometheus
    doctor      doctor: check every part of a stack
    integrity   integrity, repair: whether ClickHouse has every row, once
    admin       topics apply, db migrate
    roles       broker, clickhouse, processor, sink, task-worker, lag-exporter: one process each

Each command is a function that typer calls; `cli.command_tree` names them.
"""
