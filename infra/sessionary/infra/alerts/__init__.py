"""Alert rules for Prometheus: tables of alerts, and their output.

    render            the rules as a YAML document
    thresholds        thresholds and times, from alerts.toml
    tables        all alerts, a row for each

`sessionary alerts render` prints them; `infra/prometheus/rules.yml` has them with the defaults.
"""
