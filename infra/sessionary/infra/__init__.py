"""Running sessionary: the command line, the local stack and the demo.

    cli/                 the command line: `sessionary`
    stack                the local stack: broker, ClickHouse and the roles
    local/               a real Kafka broker, the real ClickHouse engine and a supervisor
    demo/                runs recorded agent runs as sessions, and accounts for every event
    story/               the story of one session, in words and as a picture
    lag/                 how far consumer groups are behind: samples, rules, the exporter
    kpi/                 key figures, integrity and disks, for the exporter
    alerts/              alert rules for Prometheus, printed from tables
    topics               creates and configures the Kafka topics
    environment          how a command finds its stack
    clickhouse_client    a small ClickHouse client over HTTP, for commands
    control_api_client   a small client of the control API's operators' pages, for commands
    worker_findings      what is wrong with the processors, by what they say
    settings             settings of the commands themselves
    disk_room            how much room a disk has, and how much a stack needs
    metrics_targets      where the stack's parts serve metrics, for Prometheus

This package may import every other package; no other package imports it.
"""
