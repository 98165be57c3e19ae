"""One alert from its cause to its end: what happened when."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from tests.alerts.monitoring import Message, Monitoring
from tests.support.waiting import wait_until

TIMES = ("fact", "series", "pending", "firing", "webhook", "mended", "resolved")  # of an episode, in their order
_PAUSE_S = 0.1


@dataclass
class Episode:
    """Times in seconds since the epoch; None: it did not happen, or was not looked for.

    - `fault_s`: a part was stopped, for example.
    - `fact_s`: what the alert is about is true, as something else than its metric says.
    - `series_s`: the metric says so.
    - `pending_s`, `firing_s`: of the alert in Prometheus.
    - `webhook_s`: the message arrived.
    - `mended_s`, `resolved_s`: the cause is gone; the message that says so arrived.
    """

    scenario: str
    alert: str
    labels: Mapping[str, str]
    hold_s: float
    fault_s: float = field(default_factory=time.time)
    fact_s: float | None = None
    series_s: float | None = None
    pending_s: float | None = None
    firing_s: float | None = None
    webhook_s: float | None = None
    mended_s: float | None = None
    resolved_s: float | None = None
    says: str = ""

    def times(self) -> dict[str, float | None]:
        """Return the times, in seconds since the fault, in their order."""
        found = {name: getattr(self, f"{name}_s") for name in TIMES}
        return {name: None if at_s is None else round(at_s - self.fault_s, 2) for name, at_s in found.items()}

    def concerns(self, labels: Mapping[str, str]) -> bool:
        """Return whether an alert's labels are those of this one."""
        return labels.get("alertname") == self.alert and self.labels.items() <= labels.items()


def follow_to_webhook(
    monitoring: Monitoring, episode: Episode, is_in_series: Callable[[], bool], timeout_s: float
) -> None:
    """Wait until the alert's message arrives; fill the times in. Raises AssertionError."""

    def find_message() -> Message | None:
        if episode.series_s is None and is_in_series():
            episode.series_s = time.time()
        for alert in monitoring.prometheus.active_alerts() if episode.pending_s is None else ():
            if episode.concerns(alert["labels"]):
                episode.pending_s = datetime.fromisoformat(alert["activeAt"]).timestamp()
        return _find_message(monitoring, episode, since_s=episode.fault_s, resolved=False)

    message = wait_until(find_message, timeout_s, f"{episode.alert} to reach the webhook", pause_s=_PAUSE_S)
    episode.firing_s, episode.webhook_s = message.fired_s, message.at_s
    episode.says = message.annotations["summary"]


def follow_to_end(monitoring: Monitoring, episode: Episode, timeout_s: float) -> None:
    """Wait until the message arrives that the alert is over. Raises AssertionError."""
    since_s = episode.mended_s or time.time()
    episode.resolved_s = wait_until(
        lambda: _find_message(monitoring, episode, since_s=since_s, resolved=True),
        timeout_s,
        f"{episode.alert} to be resolved",
        pause_s=_PAUSE_S,
    ).at_s


def _find_message(monitoring: Monitoring, episode: Episode, *, since_s: float, resolved: bool) -> Message | None:
    found = (
        message
        for message in monitoring.messages
        if message.at_s >= since_s and message.resolved is resolved and episode.concerns(message.labels)
    )
    return next(found, None)
