"""Grafana dashboards, from typed tables; `boards` writes them.

    panel             a panel, a dashboard, and their JSON
    pipeline_board    lag, integrity, clients
    processor_board   records, transactions, timers, partitions
    sink_board        rows, lag, faults
    session_board     states, transitions, state
    kpi_board         the figures that have a target
    boards            all of them, and the files that they are written to
    prometheus        starts a real Prometheus beside a stack, and asks it
    scraped_agent     an agent whose client Prometheus scrapes too
    pictures          draws each dashboard from Prometheus' answers

The JSON is in infra/grafana, the pictures in docs/dashboards.
"""
