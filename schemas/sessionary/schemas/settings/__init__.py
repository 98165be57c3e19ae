"""Settings from the environment, and the Kafka clients' shared configuration.

    env_settings           the base of every settings class, read from `SESSIONARY_*` variables
    kafka_settings         how every role and the client reach Kafka and the schema registry
    librdkafka_options     further settings of librdkafka, passed through by their own names
    clickhouse_settings    how ClickHouse is reached
    reread_file            a file of settings that is read again if it changes

A role's own settings are in its package.
"""

from sessionary.schemas.settings.clickhouse_settings import ClickHouseSettings
from sessionary.schemas.settings.env_settings import ENV_PREFIX, EnvSettings, LogSettings
from sessionary.schemas.settings.kafka_settings import SOCKET_TIMEOUT_MS, KafkaSettings

__all__ = ["ENV_PREFIX", "SOCKET_TIMEOUT_MS", "ClickHouseSettings", "EnvSettings", "KafkaSettings", "LogSettings"]
