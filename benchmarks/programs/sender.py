"""A program that sends at a fixed rate (open loop), and records when it handed over each event.

    python -m benchmarks.programs.sender client|plain --rate 2000 --seconds 20 --out FILE

`client` runs sessions with `SessionClient`, as an agent does. `plain` sends records of the same
sizes with a bare librdkafka producer of the same settings. Both follow one script of 11 events:
created, two phases, started, six activities, completed. The first, the fourth and the last make an
audit record.

FILE has one line `name ns` per such event: when it was handed over, in ns since the epoch. The last
line is `late_ms x`: the largest delay of the sender, in case the machine is too busy for the rate.
"""

import argparse
import sys
import tempfile
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from confluent_kafka import Producer

from sessionary.producers import ProducerSettings, Session, SessionClient
from sessionary.producers.delivery.kafka_producer import producer_config
from sessionary.producers.session.lifecycle import Lifecycle

SCRIPT_EVENTS = 11
AUDITED = {0: "session_created", 3: "session_started", 10: "session_terminated"}
SHARE = len(AUDITED) / SCRIPT_EVENTS
# Bytes of each event of the script as the client encodes it, value and headers; `plain` sends as
# many.
_EVENT_BYTES = (525, 422, 422, 409, *(443,) * 6, 536)
_SESSION_PAUSE_S = 0.1
_SLEEP_S = 0.0005


class Script(Protocol):
    """One session that follows the script."""

    def send_event(self, n: int) -> str | None:
        """Send event `n`; return the name of its audit record, None if it makes none."""
        ...


class _ClientScript:
    """Sends with the real client."""

    def __init__(self, client: SessionClient) -> None:
        self._client = client
        self._session: Session | None = None

    def send_event(self, n: int) -> str | None:
        if n == 0:
            self._session = self._client.create(user_id="u1", state={"step": 0})
        assert self._session is not None
        if n in (1, 2):
            self._session.lifecycle.enter_phase("validating" if n == 1 else "connecting")
        elif n == 3:
            Lifecycle(self._session.core).mark_started({})
        elif n == SCRIPT_EVENTS - 1:
            self._session.complete()
        elif n > 3:
            self._session.activity("llm", "a line about what was done")
        return f"{self._session.session_id}/{AUDITED[n]}" if n in AUDITED else None


class _PlainScript:
    """Sends with a bare producer. The value's first byte says if the hop passes the record on."""

    def __init__(self, producer: Producer, topic: str) -> None:
        self._producer, self._topic = producer, topic
        self._key = ""

    def send_event(self, n: int) -> str | None:
        if n == 0:
            self._key = f"acme:{uuid.uuid4()}"
        name = f"{self._key}/{AUDITED[n]}" if n in AUDITED else None
        mark = (b"1" + name.encode() if name else b"0").ljust(_EVENT_BYTES[n], b"\0")
        self._producer.produce(self._topic, mark, self._key.encode())
        self._producer.poll(0)
        return name


def run_scripts(make: Callable[[], Script], rate: float, seconds: float) -> Iterator[str]:
    """Run scripts side by side at `rate` events per second in total; yield the file's lines."""
    # As many sessions as make the rate if each one sends ten events a second.
    waiting = deque((make(), 0) for _ in range(max(1, round(rate * _SESSION_PAUSE_S))))
    began_s, late_s = time.monotonic(), 0.0
    for number in range(round(rate * seconds)):
        due_s = began_s + number / rate
        while (now_s := time.monotonic()) < due_s:
            time.sleep(max(_SLEEP_S, min(due_s - now_s, 0.005)))
        late_s = max(late_s, now_s - due_s)
        script, n = waiting.popleft()
        at_ns = time.time_ns()
        if (name := script.send_event(n)) is not None:
            yield f"{name} {at_ns}\n"
        waiting.append((script, n + 1) if n + 1 < SCRIPT_EVENTS else (make(), 0))
    yield f"late_ms {late_s * 1e3:.3f}\n"


def main() -> int:
    """Send, then write the file; the exit code is 1 if events were not acknowledged."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.programs.sender")
    parser.add_argument("mode", choices=("client", "plain"))
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sessionary-bench-spool-") as spool:
        settings = ProducerSettings.from_env(spool_dir=Path(spool))
        if given.mode == "client":
            with SessionClient(tenant_id="acme", service_id="billing", agent_id="agent-1", settings=settings) as client:
                lines = list(run_scripts(lambda: _ClientScript(client), given.rate, given.seconds))
                left = client.flush(60)
        else:
            producer = Producer(producer_config(settings))
            topic = settings.topics.events
            lines = list(run_scripts(lambda: _PlainScript(producer, topic), given.rate, given.seconds))
            left = producer.flush(60)
    given.out.write_text("".join(lines))
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
