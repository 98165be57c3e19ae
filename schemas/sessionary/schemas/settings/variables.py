"""The variables of an environment that are settings, and those that were meant to be.

Kubernetes adds variables for each Service of a namespace to each of its pods, and a Service named
`sessionary-api` makes them look like settings: `SESSIONARY_API_PORT=tcp://10.96.4.7:8600`.
They are never settings, whatever the Service is called.
"""

import logging
import os
import re
from collections.abc import Iterable, Mapping
from typing import Final

from sessionary.schemas.settings.librdkafka_options import OPTION_PREFIX

ENV_PREFIX: Final = "SESSIONARY_"
PORT_PREFIX: Final = "SESSIONARY_METRICS_PORT_"  # of the parts of a local stack, in its folder's variables

VARIABLES: Final = frozenset(
    (
        "SESSIONARY_API_ADVERTISED_URL",
        "SESSIONARY_API_FOLLOWERS_MAX",
        "SESSIONARY_API_HOST",
        "SESSIONARY_API_PAST_STATES_MAX",
        "SESSIONARY_API_PAST_STATES_SECONDS",
        "SESSIONARY_API_PORT",
        "SESSIONARY_API_TLS_CERTIFICATE",
        "SESSIONARY_API_TLS_KEY",
        "SESSIONARY_API_TOKEN",
        "SESSIONARY_API_TOKENS",
        "SESSIONARY_API_TOKENS_FILE",
        "SESSIONARY_ARTIFACTS_URL",
        "SESSIONARY_BLOCK_TIMEOUT_S",
        "SESSIONARY_BOOTSTRAP_SERVERS",
        "SESSIONARY_CLICKHOUSE_CA_LOCATION",
        "SESSIONARY_CLICKHOUSE_DATABASE",
        "SESSIONARY_CLICKHOUSE_PASSWORD",
        "SESSIONARY_CLICKHOUSE_URL",
        "SESSIONARY_CLICKHOUSE_USER",
        "SESSIONARY_CLOCK_AHEAD_S_MAX",
        "SESSIONARY_CLOSE_TIMEOUT_S",
        "SESSIONARY_COMMIT_INTERVAL_MS",
        "SESSIONARY_CONTROL_CA_LOCATION",
        "SESSIONARY_CONTROL_URL",
        "SESSIONARY_DELIVERY_POLICY",
        "SESSIONARY_DELIVERY_TIMEOUT_S",
        "SESSIONARY_DISABLED",
        "SESSIONARY_FAUST_AGENTS",
        "SESSIONARY_HANDLE_SIGTERM",
        "SESSIONARY_HEARTBEAT_INTERVAL_S",
        "SESSIONARY_INHERIT_IN_THREADS",
        "SESSIONARY_INSTANCE",
        "SESSIONARY_INTEGRITY_INTERVAL_S",
        "SESSIONARY_INTEGRITY_WINDOW_S",
        "SESSIONARY_JOURNAL_PATH",
        "SESSIONARY_KPI_INTERVAL_S",
        "SESSIONARY_KPI_WINDOW_S",
        "SESSIONARY_LAG_INTERVAL_S",
        "SESSIONARY_LAG_WINDOW_S",
        "SESSIONARY_LOG_FORMAT",
        "SESSIONARY_LOG_LEVEL",
        "SESSIONARY_METRICS_HOST",
        "SESSIONARY_METRICS_PORT",
        "SESSIONARY_MODEL_CALL_LIMIT_S",
        "SESSIONARY_OPERATOR_TOKEN",
        "SESSIONARY_OUTAGE_GRACE_MS",
        "SESSIONARY_OUTAGE_MS",
        "SESSIONARY_PARTITIONS",
        "SESSIONARY_PIPELINE",
        "SESSIONARY_POLL_INTERVAL_S",
        "SESSIONARY_PROTOCOL_VERSION",
        "SESSIONARY_QUEUE_BYTES_MAX",
        "SESSIONARY_QUOTAS",
        "SESSIONARY_QUOTAS_FILE",
        "SESSIONARY_QUOTAS_URL",
        "SESSIONARY_QUOTA_WAIT_S",
        "SESSIONARY_RETENTION_ARTIFACTS_DAYS",
        "SESSIONARY_RETENTION_BATCHES_DAYS",
        "SESSIONARY_RETENTION_HISTORY_DAYS",
        "SESSIONARY_RETENTION_IDLE_DAYS",
        "SESSIONARY_RETENTION_RUNS_DAYS",
        "SESSIONARY_SASL_MECHANISM",
        "SESSIONARY_SASL_PASSWORD",
        "SESSIONARY_SASL_USERNAME",
        "SESSIONARY_SCHEMA_REGISTRY_CA_LOCATION",
        "SESSIONARY_SCHEMA_REGISTRY_PASSWORD",
        "SESSIONARY_SCHEMA_REGISTRY_URL",
        "SESSIONARY_SCHEMA_REGISTRY_USERNAME",
        "SESSIONARY_SECURITY_PROTOCOL",
        "SESSIONARY_SERVER_VERSION",
        "SESSIONARY_SESSION_ID_VERSION",
        "SESSIONARY_SESSION_TIMEOUT_MS",
        "SESSIONARY_SIGNING_KEYS",
        "SESSIONARY_SIGNING_KEYS_FILE",
        "SESSIONARY_SINK_ACCEPT_GAPS",
        "SESSIONARY_SINK_ACCEPT_TOPICS",
        "SESSIONARY_SINK_FLUSH_BYTES",
        "SESSIONARY_SINK_FLUSH_ROWS",
        "SESSIONARY_SINK_FLUSH_SECONDS",
        "SESSIONARY_SINK_IDLE_SECONDS",
        "SESSIONARY_SINK_INSERT_TIMEOUT_S",
        "SESSIONARY_SINK_SESSION_TIMEOUT_MS",
        "SESSIONARY_SNAPSHOT_CACHE_MB",
        "SESSIONARY_SPOOL_BYTES_MAX",
        "SESSIONARY_SPOOL_DIR",
        "SESSIONARY_SSL_CA_LOCATION",
        "SESSIONARY_STATE_DIR",
        "SESSIONARY_STORE",
        "SESSIONARY_TICK_COMMIT_INTERVAL_MS",
        "SESSIONARY_TOPIC_PREFIX",
        "SESSIONARY_TRACE_EVENTS",
        "SESSIONARY_VERDICT_TIMEOUT_S",
    )
)
"""Every setting of every role; a test compares them with the settings classes."""

# https://kubernetes.io/docs/concepts/services-networking/service/#environment-variables
_SERVICE_NAME: Final = re.compile(r"_SERVICE_(HOST|PORT(_\w+)?)$|_PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?$")
_SERVICE_URL: Final = re.compile(r"(tcp|udp|sctp)://")
_LIKENESS: Final = 0.8  # of the part after the prefix

_log = logging.getLogger("sessionary")
_named: set[str] = set()  # each of these was named in this process


def read_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with our prefix that are settings, without blanks around their values.

    A variable without a value is not set. A password keeps its blanks, and loses its line end only.
    """
    found = {}
    for name, value in environ.items():
        if name.startswith(ENV_PREFIX) and value.strip() and not _is_of_service(name, value):
            found[name] = value.strip("\r\n") if name.endswith("_PASSWORD") else value.strip()
    return found


def _is_of_service(name: str, value: str) -> bool:
    """Return whether Kubernetes made a variable for a Service."""
    if name.endswith("_PORT") and _SERVICE_URL.match(value.strip()):
        return True
    return _SERVICE_NAME.search(name) is not None


def find_near_misses(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that are no settings but nearly have the name of one: that setting."""
    found = {}
    for name, value in sorted(environ.items()):
        if _is_foreign(name) or _is_of_service(name, value):
            continue
        if (nearest := _nearest(name)) is not None:
            found[name] = nearest
    return found


def describe_near_misses(found: Mapping[str, str]) -> Iterable[str]:
    """Return a sentence for each variable that is nearly a setting."""
    return (f"{name} is no setting and has no effect; did you mean {nearest}?" for name, nearest in found.items())


def warn_of_near_misses() -> None:
    """Log a warning for each variable of this process that is nearly a setting, once a process."""
    found = find_near_misses(os.environ)
    for sentence in describe_near_misses({name: near for name, near in found.items() if name not in _named}):
        _log.warning("%s", sentence)
    _named.update(found)


def _is_foreign(name: str) -> bool:
    """Return whether a variable is a setting, or is not meant to be one."""
    if name in VARIABLES or name.startswith((OPTION_PREFIX, PORT_PREFIX)):
        return True
    return not name.upper().startswith("SESSION")


def _nearest(name: str) -> str | None:
    from difflib import get_close_matches  # most processes have no such variable

    words = re.sub(r"[^A-Z0-9]+", "_", name.upper()).split("_")
    matches = [known for known in VARIABLES if sorted(known.split("_")) == sorted(words)]
    if not matches and words[0] != "SESSIONARY":  # the prefix itself is wrong
        return next(iter(get_close_matches("_".join(words), sorted(VARIABLES), 1, 0.9)), None)
    if not matches:
        rests = {known.removeprefix(ENV_PREFIX): known for known in sorted(VARIABLES)}
        matches = [rests[rest] for rest in get_close_matches("_".join(words[1:]), rests, 1, _LIKENESS)]
    return matches[0] if matches else None
