"""Small modules that one other module alone imports."""

# Why each stands apart.
SMALL_MODULES = {
    "sessionary.infra.cli.task_pages": "loads the client, which no other role needs",
    "sessionary.producers.prometheus_metrics": "public: agents register it with their own registry",
    "sessionary.sinks.core.outcomes": "the one table of reason codes and outcomes, beside no statement",
    "sessionary.sinks.core.rows.event_columns": "an extension takes its place in a native build",
}
