"""Draws what the documents take from the code: `python -m docs.build`, which `make docs` runs.

transition_docs       the state diagram and the page of transitions
transition_diagram    the diagram, and the tables of transitions
limits_page           the tables of limits, clocks and bounds
clock_picture         which event moves which clock, as a picture
clock_effects         the same, asked of the judge
settings_table        the page of settings
metrics_table         the page of metrics
schema_page           the page of events and records
control_api_page      the page of the control API
clickhouse_page       tables, views, columns, and answers to questions
commands_page         the page of the commands
verbs_page            the page of the client's verbs
alert_rules           Prometheus' rules with their defaults
dashboards/           Grafana's dashboards, and their pictures
marked_text           text between two marks of a document
"""
