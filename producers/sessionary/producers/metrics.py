"""A client's metrics: the name, sentence and value of each, without a metrics library.

`prometheus_metrics` and `otel_metrics` export these. The values of several clients of a process are
added up; the age is the greatest. No label comes from an agent's data.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Final, Literal, NamedTuple, Protocol

from sessionary.producers.ports import Backlog, Counters, PolicyInForce

MetricName = Literal[
    "sessionary_client_events_total",
    "sessionary_client_delivery_errors_total",
    "sessionary_client_spool_damaged_events_total",
    "sessionary_client_queue_events",
    "sessionary_client_spool_events",
    "sessionary_client_spool_bytes",
    "sessionary_client_oldest_event_age_seconds",
    "sessionary_client_policy_clients",
]

HELP: Final[Mapping[MetricName, str]] = {
    "sessionary_client_events_total": "Events without heartbeats, by outcome: delivered, dropped (no room), failed "
    "(given up after an error), expired (too old for a replay), rejected (delivered ones of which the client was "
    "notified).",
    "sessionary_client_delivery_errors_total": "Delivery errors, by reason: librdkafka's name of the error in lower "
    "case, queue_full, spool_full, not_on_disk (an event kept in memory), expired, unreadable_frame, "
    "damaged_segment or spool_removed; control_authentication if the control API refuses the token.",
    "sessionary_client_spool_damaged_events_total": "Events in the spool that could not be read and are "
    "lost: a disk or machine failed.",
    "sessionary_client_queue_events": "Events that Kafka has not acknowledged and that were not given up.",
    "sessionary_client_spool_events": "Events in the spool that Kafka has not acknowledged.",
    "sessionary_client_spool_bytes": "Bytes that the spool holds; delivered events count until their file is cleared.",
    "sessionary_client_oldest_event_age_seconds": "Seconds since the oldest unacknowledged event was "
    "taken; 0 without one.",
    "sessionary_client_policy_clients": "Clients by the delivery policy in force: spool, block, drop, disabled or (in "
    "tests) memory. A client of policy spool without a usable folder has drop.",
}

LABELS: Final[Mapping[MetricName, tuple[str, ...]]] = {
    "sessionary_client_events_total": ("outcome",),
    "sessionary_client_delivery_errors_total": ("reason",),
    "sessionary_client_policy_clients": ("policy",),
}
"""The labels of those that have any."""


class MeasuredClient(Protocol):
    """The measured part of a client, common to `SessionClient` and `AsyncSessionClient`."""

    @property
    def counters(self) -> Counters:
        """Numbers since the client was made."""
        ...

    @property
    def backlog(self) -> Backlog:
        """The events that Kafka has not acknowledged."""
        ...

    @property
    def delivery_policy(self) -> PolicyInForce:
        """The delivery policy in effect for the client's events."""
        ...


class Sample(NamedTuple):
    """The value of one series; `label` is the value of its only label, if it has one."""

    label: str | None
    value: float


class ClientMeter:
    """Measures clients of this process. Thread-safe."""

    def __init__(self, *clients: MeasuredClient) -> None:
        """Keep the clients, so that what a closed one has counted stays."""
        self._clients = clients

    def read_samples(self) -> dict[MetricName, list[Sample]]:
        """Return the samples of every metric. Does not wait for Kafka.

        A forked child counts its own events only.
        """
        counters = [client.counters for client in self._clients]
        backlogs = [client.backlog for client in self._clients]
        policies = Counter(client.delivery_policy for client in self._clients)
        errors: Counter[str] = Counter()
        for one in counters:
            errors.update(one.errors)
        return {
            "sessionary_client_events_total": [
                Sample("delivered", sum(one.delivered for one in counters)),
                Sample("dropped", sum(one.dropped for one in counters)),
                Sample("failed", sum(one.failed for one in counters)),
                Sample("expired", sum(one.expired for one in counters)),
                Sample("rejected", sum(one.rejected for one in counters)),
            ],
            "sessionary_client_delivery_errors_total": [Sample(*found) for found in sorted(errors.items())],
            "sessionary_client_spool_damaged_events_total": [Sample(None, sum(one.damaged for one in counters))],
            "sessionary_client_queue_events": [Sample(None, sum(one.events for one in backlogs))],
            "sessionary_client_spool_events": [Sample(None, sum(one.spool_events for one in backlogs))],
            "sessionary_client_spool_bytes": [Sample(None, sum(one.spool_bytes for one in backlogs))],
            "sessionary_client_oldest_event_age_seconds": [
                Sample(None, max((one.oldest_age_s for one in backlogs), default=0.0))
            ],
            "sessionary_client_policy_clients": [Sample(*found) for found in sorted(policies.items())],
        }
