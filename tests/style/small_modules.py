"""Small modules that one other module alone imports."""

# Why each stands apart.
SMALL_MODULES = {
    "sessionary.infra.cli.task_pages": "loads the client, which no other role needs",
    "sessionary.producers.prometheus_metrics": "public: agents register it with their own registry",
    "sessionary.stream_processors.families": "the one line that a new family of rows adds",
    "sessionary.sinks.core.rows.event_columns": "an extension takes its place in a native build",
}
# They stand there until they are moved into their importers: the list can only get shorter.
NOT_MOVED_YET = {
    "sessionary.stream_processors.core.message.judge",
    "sessionary.stream_processors.core.quota.tokens",
    "sessionary.stream_processors.core.session.migration.effects",
    "sessionary.stream_processors.core.session.people.snapshots",
}
