"""Running sessionary: the command line, the local stack and the demo.

    cli/                 the command line: `sessionary`
    stack                the local stack: broker, ClickHouse and the roles
    local/               a real Kafka broker, the real ClickHouse engine and a supervisor
    demo/                runs recorded agent runs as sessions, and accounts for every event
    story/               the story of one session, in words and as a picture
    lag/                 the lag of consumer groups: samples, rules, the exporter
    kpi/                 key figures, integrity and disks, for the exporter
    alerts/              alert rules for Prometheus, printed from tables
    topics               creates and configures the Kafka topics
    environment          the variables of a command's stack
    clickhouse_client    a small ClickHouse client over HTTP, for commands
    control_api_client   a small client of the control API's operators' pages, for commands
    past_rows            a session's state at a point, folded from ClickHouse's rows
    worker_findings      faults of the processors, by their own documents
    settings             settings of the commands themselves
    disk_room            the room on a disk, and the need of a stack
    metrics_targets      the metrics addresses of the stack's parts, for Prometheus

This package may import every other package; no other package imports it.
"""
