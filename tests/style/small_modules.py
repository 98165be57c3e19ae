"""Small modules that one other module alone imports."""

# Why each stands apart.
SMALL_MODULES = {
    "sessionary.schemas.settings.clickhouse_settings": "the settings of one server, beside those of Kafka",
    "sessionary.producers.prometheus_metrics": "public: agents register it with their own registry",
    "sessionary.sinks.core.retry_pause": "pure; the consumer waits by it",
    "sessionary.infra.local.clickhouse.request_bodies": "pure; the server reads from sockets",
    "sessionary.sinks.core.rows.event_columns": "an extension takes its place in a native build",
}
