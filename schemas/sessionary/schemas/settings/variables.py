"""The variables of an environment that are settings, and those that were meant to be.

Kubernetes adds variables for each Service of a namespace to each of its pods, and a Service named
`sessionary-kafka` makes them look like settings: `SESSIONARY_KAFKA_PORT=tcp://10.96.4.7:9092`.
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
    ENV_PREFIX + name
    for name in """
    API_ADVERTISED_URL API_FOLLOWERS_MAX API_HOST API_PORT API_TLS_CERTIFICATE API_TLS_KEY API_TOKEN
    API_TOKENS API_TOKENS_FILE ARTIFACTS_URL BLOCK_TIMEOUT_S BOOTSTRAP_SERVERS
    CLICKHOUSE_CA_LOCATION CLICKHOUSE_DATABASE CLICKHOUSE_PASSWORD CLICKHOUSE_URL CLICKHOUSE_USER
    CLOCK_AHEAD_S_MAX CLOSE_TIMEOUT_S COMMIT_INTERVAL_MS CONTROL_CA_LOCATION CONTROL_URL
    DELIVERY_POLICY DELIVERY_TIMEOUT_S DISABLED FAUST_AGENTS HANDLE_SIGTERM HEARTBEAT_INTERVAL_S
    INHERIT_IN_THREADS INSTANCE INTEGRITY_INTERVAL_S INTEGRITY_WINDOW_S JOURNAL_PATH KPI_INTERVAL_S
    KPI_WINDOW_S LAG_INTERVAL_S LAG_WINDOW_S LOG_FORMAT LOG_LEVEL METRICS_HOST METRICS_PORT
    MODEL_CALL_LIMIT_S OPERATOR_TOKEN OUTAGE_GRACE_MS OUTAGE_MS PARTITIONS PIPELINE POLL_INTERVAL_S
    QUEUE_BYTES_MAX QUOTAS QUOTAS_FILE QUOTAS_URL QUOTA_WAIT_S RETENTION_ARTIFACTS_DAYS
    RETENTION_BATCHES_DAYS RETENTION_HISTORY_DAYS RETENTION_IDLE_DAYS RETENTION_RUNS_DAYS
    SASL_MECHANISM SASL_PASSWORD SASL_USERNAME SCHEMA_REGISTRY_CA_LOCATION SCHEMA_REGISTRY_PASSWORD
    SCHEMA_REGISTRY_URL SCHEMA_REGISTRY_USERNAME SECURITY_PROTOCOL SESSION_ID_VERSION
    SESSION_TIMEOUT_MS SIGNING_KEYS SIGNING_KEYS_FILE SINK_ACCEPT_GAPS SINK_ACCEPT_TOPICS
    SINK_FLUSH_BYTES SINK_FLUSH_ROWS SINK_FLUSH_SECONDS SINK_IDLE_SECONDS SINK_INSERT_TIMEOUT_S
    SINK_SESSION_TIMEOUT_MS SPOOL_BYTES_MAX SPOOL_DIR SSL_CA_LOCATION STATE_DIR STORE
    TICK_COMMIT_INTERVAL_MS TOPIC_PREFIX TRACE_EVENTS VERDICT_TIMEOUT_S
    """.split()
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
