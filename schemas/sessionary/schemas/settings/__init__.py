"""Settings from the environment, and the Kafka clients' shared configuration.

    env_settings           the base of all settings; how Kafka and ClickHouse are reached; files
    librdkafka_options     further settings of librdkafka, passed through by their own names
    variables              which variables are settings, and which were meant to be

A role's own settings are in its package.
"""

from sessionary.schemas.settings.env_settings import (
    SOCKET_TIMEOUT_MS,
    ClickHouseSettings,
    EnvSettings,
    KafkaSettings,
    LogSettings,
)
from sessionary.schemas.settings.variables import ENV_PREFIX, read_variables

__all__ = [
    "ENV_PREFIX",
    "SOCKET_TIMEOUT_MS",
    "ClickHouseSettings",
    "EnvSettings",
    "KafkaSettings",
    "LogSettings",
    "read_variables",
]
