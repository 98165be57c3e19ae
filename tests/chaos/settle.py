"""Lets the stack come to rest: agents first, then processors, then sinks; each once there is nothing left for it."""

import time
from collections.abc import Callable

from confluent_kafka import KafkaException

from tests.auditor.evidence import query
from tests.chaos.load import Load
from tests.chaos.schedule import SINK_TOPICS
from tests.chaos.stack import DATABASE, PREFIX, Stage

_AGENTS_S = 150.0
_SESSIONS_S = 30.0
_CAUGHT_UP_S = 90.0
_LOOK_S = 0.3


def settle(stage: Stage, load: Load, say: Callable[[str], None]) -> list[str]:
    """Bring everything to rest; return what would not, as sentences."""
    restless: list[str] = []

    def wait(well: Callable[[], bool], timeout_s: float, what: str) -> bool:
        say(f"waiting for {what}")
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            try:
                if well():
                    return True
            except (OSError, KafkaException):
                pass
            time.sleep(_LOOK_S)
        return False

    if not wait(load.idle, _AGENTS_S, "the agents to finish"):
        restless.append(f"the agents did not finish within {_AGENTS_S:g} s")
    # A session may live on for good reasons, so this is no fault: only fewer deadlines would have been seen.
    wait(lambda: _living(stage) == 0, _SESSIONS_S, "the last sessions to end")
    load.stop()
    restless += [f"agent {name} left {path.name} in its spool" for name in load.folders for path in load.segments(name)]

    ends = stage.standing(f"{PREFIX}.processor", f"{PREFIX}.events")

    def judged() -> bool:
        now = stage.standing(f"{PREFIX}.processor", f"{PREFIX}.events")
        return all(now[number][1] >= end for number, (end, _) in ends.items())

    if not wait(judged, _CAUGHT_UP_S, "the processors to judge everything"):
        restless.append(f"the processors did not catch up within {_CAUGHT_UP_S:g} s")
    stage.workers.stop()
    for kind, topic in SINK_TOPICS.items():
        group, name = f"{PREFIX}.sink.{kind}", f"{PREFIX}.{topic}"
        if not wait(lambda group=group, name=name: stage.lag(group, name) == 0, _CAUGHT_UP_S, f"sink {kind}"):  # type: ignore[misc]
            restless.append(f"sink {kind} did not catch up within {_CAUGHT_UP_S:g} s")
    return restless


def _living(stage: Stage) -> int:
    """Sessions that began and are not archived, as far as the audit trail in ClickHouse tells."""
    row = query(
        stage.clickhouse_url,
        f"SELECT uniqExactIf(session_id, transition = 'T01') - uniqExactIf(session_id, transition = 'T14') AS n "
        f"FROM {DATABASE}.audit",
    )[0]
    return int(row["n"])


__all__ = ["settle"]
