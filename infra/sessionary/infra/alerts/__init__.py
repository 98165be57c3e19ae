"""Alert rules for Prometheus: tables of alerts, and what prints them.

    alert             what one alert is
    lag_alerts        lag of consumer groups, and what cannot be reached
    processor_alerts  what processors say of themselves
    delivery_alerts   clients, sinks, tables and disks
    target_alerts     the targets that are required of the whole pipeline
    render            the rules as a YAML document
    thresholds        thresholds and times, from alerts.toml

`sessionary alerts render` prints them; `infra/prometheus/rules.yml` has them with the defaults.
"""
