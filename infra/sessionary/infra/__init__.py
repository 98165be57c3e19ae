"""Running sessionary: the command line, the local stack and the demo.

    cli/                 the command line: `sessionary`
    stack                the local stack: broker, ClickHouse and the roles
    metrics_targets      where the stack's parts serve metrics, for Prometheus
    local/               a real Kafka broker, the real ClickHouse engine and a supervisor
    demo/                runs recorded agent runs as sessions, and accounts for every event
    migration_demo/      moves one session through three services, and kills one of them
    workflow_demo/       kills the workflow example in the middle, and shows how it goes on
    story/               the story of one session, in words and as a picture
    lag/                 how far consumer groups are behind: samples, rules, the exporter
    kpi/                 key figures, integrity and disks, for the exporter
    alerts/              alert rules for Prometheus, printed from tables
    topics               creates and configures the Kafka topics
    disk_room            how much room a disk has, and how much a stack needs
    environment          how a command finds its stack
    clickhouse_client    a small ClickHouse client over HTTP, for commands
    control_api_client   a small client of the control API's operators' pages, for commands
    outward_calls        finds what a query would reach out of the database for
    worker_findings      what is wrong with the processors, by what they say
    tenants              the tenants of the local stack and the demo
    settings             settings of the commands themselves

This package may import every other package; no other package imports it.
"""
