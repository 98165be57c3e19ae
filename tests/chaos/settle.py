"""Stops the stack in order, each part once it has no work left: agents, processors, sinks."""

import re
import time
import urllib.request
from collections.abc import Callable

from confluent_kafka import KafkaException

from tests.auditor.evidence import query_rows
from tests.chaos.load import Load
from tests.chaos.schedule import SINK_TOPICS
from tests.chaos.stack import DATABASE, PREFIX, ChaosStack
from tests.chaos.unread_records import find_unread

_AGENTS_S = 240.0
_SESSIONS_S = 30.0
_CAUGHT_UP_S = 180.0
_LOOK_S = 0.3
_PAGE_S = 5.0
_PROCESSORS, _EVENTS = f"{PREFIX}.processor", f"{PREFIX}.events"


def settle_stack(stack: ChaosStack, load: Load, say: Callable[[str], None]) -> list[str]:
    """Stop all parts; return a sentence for each that did not finish."""
    unsettled: list[str] = []

    def wait(condition: Callable[[], bool], timeout_s: float, what: str) -> bool:
        say(f"waiting for {what}")
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            try:
                if condition():
                    return True
            except (OSError, KafkaException):
                pass
            time.sleep(_LOOK_S)
        return False

    if not wait(load.is_idle, _AGENTS_S, "the agents to finish"):
        unsettled.append(f"the agents did not finish within {_AGENTS_S:g} s")
    # A session may stay alive for good reasons; then fewer deadlines are tested.
    wait(lambda: _live_sessions(stack) == 0, _SESSIONS_S, "the last sessions to end")
    load.stop()
    unsettled += [
        f"agent {name} left {path.name} in its spool" for name in load.folders for path in load.spool_segments(name)
    ]

    if stack.quotas_url is not None and not wait(
        lambda: count_open_claims(f"{stack.quotas_url}/metrics") == 0,
        _CAUGHT_UP_S,
        "every claim to a quota to be heard",
    ):
        unsettled.append(f"claims to quotas still wait after {_CAUGHT_UP_S:g} s")

    # Sessions that live on are ticked for ever, so the end is the one of now.
    ends = {number: end for number, (end, _) in stack.group_offsets(_PROCESSORS, _EVENTS).items()}
    behind: dict[int, int] = {}

    def caught_up() -> bool:
        behind.clear()
        unread = find_unread(stack.servers_address, _PROCESSORS, _EVENTS, ends)
        behind.update({number: first for number, first in unread.items() if first < ends[number]})
        return not behind

    if not wait(caught_up, _CAUGHT_UP_S, "the processors to catch up"):
        places = ", ".join(f"partition {number} at {first} of {ends[number]}" for number, first in behind.items())
        unsettled.append(
            f"the processors did not catch up within {_CAUGHT_UP_S:g} s: {places or 'the broker does not answer'}"
        )
    stack.workers.stop()
    for kind, topic in SINK_TOPICS.items():
        group, name = f"{PREFIX}.sink.{kind}", f"{PREFIX}.{topic}"
        if not wait(lambda group=group, name=name: stack.group_lag(group, name) == 0, _CAUGHT_UP_S, f"sink {kind}"):  # type: ignore[misc]
            unsettled.append(f"sink {kind} did not catch up within {_CAUGHT_UP_S:g} s")
    return unsettled


def count_open_claims(page: str) -> int:
    """Return how many claims wait, or were decided and not heard. Raises `OSError`."""
    with urllib.request.urlopen(page, timeout=_PAGE_S) as answer:
        text = answer.read().decode()
    found = {state: float(count) for state, count in re.findall(r'quota_claims\{state="(\w+)"\} (\S+)', text)}
    return round(sum(found[state] for state in ("waiting", "granted", "rejected")))


def _live_sessions(stack: ChaosStack) -> int:
    """Return the number of sessions that are not archived yet, by the audit rows in ClickHouse."""
    row = query_rows(
        stack.clickhouse_url,
        f"SELECT uniqExactIf(session_id, transition = 'T01') - uniqExactIf(session_id, transition = 'T14') AS n "
        f"FROM {DATABASE}.audit",
    )[0]
    return int(row["n"])
