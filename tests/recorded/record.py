"""Record the log of a release: `python -m tests.recorded.record 0.2.0 --runs FILE`.

A real broker and a real processor run for some minutes. The client plays recorded agent runs; a
plain producer sends scripted sessions. Meanwhile processor and broker are killed and started again,
so that the log has recoveries and outages. At the end so many sessions time out with one record
that a batch ends in the middle of its timers.

Prints how often each transition and each rejection came. Exits with 1, and writes nothing, if one
came less than 20 times, or if the recording is too large (play fewer runs: `--sessions`). Never
writes over an existing recording.
"""

import argparse
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sessionary.infra.demo.plan import make_plan
from sessionary.infra.demo.plan_runner import PlanRunner
from sessionary.infra.demo.runs import Run, read_runs
from sessionary.schemas.errors import Invalid
from sessionary.schemas.ids import parse_key
from sessionary.schemas.settings import KafkaSettings
from sessionary.schemas.types import Limits
from tests.recorded.actors import Actor, RawSender, Script, Wait, keys_of_partition
from tests.recorded.adapter import (
    comparable,
    read_borders,
    reason_of,
    settings_in_force,
    transition_of,
    without_acknowledgements,
)
from tests.recorded.coverage import too_rare
from tests.recorded.log_format import (
    BYTES_MAX,
    FULL_SESSIONS,
    OUTPUT_TOPICS,
    EventsByPartition,
    LoggedEvent,
    Output,
    RecordedLog,
    RecordedSettings,
    by_partition,
    write_log,
)
from tests.recorded.scripts import COPIES, SCRIPTS, classes_of, service_of
from tests.recorded.stage import OUTAGE_GRACE_MS, OUTAGE_MS, PARTITIONS, TOPIC_PREFIX, Stage, Watch
from tests.support import read_topic

FOLDER = Path(__file__).parent
_SPEED = 60.0  # of the recorded runs
_PROCESSOR_KILLED_AT, _BROKER_KILLED_AT = 0.25, 0.6  # of the play's duration
_SCRIPTS_PER_S = 6.0
_WAIT_MAX_S = 150.0
_REST_S = 22.0  # longer than any limit that may still fire
_CROWD_INIT_MS = 30_000
_READ_TIMEOUT_S = 120.0


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _perform_scripts(sender: RawSender, watch: Watch) -> None:
    """Run every copy of every script, started at a steady rate. Blocks until all have ended."""
    starting = [(n, name) for n in range(COPIES) for name in SCRIPTS]
    running: dict[str, tuple[Script, Wait, float]] = {}
    begun_s = time.monotonic()
    while starting or running:
        now_s = time.monotonic()
        while starting and now_s - begun_s >= (COPIES * len(SCRIPTS) - len(starting)) / _SCRIPTS_PER_S:
            n, name = starting.pop(0)
            actor = Actor(sender, watch, f"{name} {n}", tenant=("acme", "globex")[n % 2], service=service_of(n))
            actor.classes = classes_of(n)
            running[f"{name} {n}"] = SCRIPTS[name](actor, n), 0.0, now_s
        for title, (script, wait, since_s) in list(running.items()):
            if not _is_over(wait, now_s - since_s):
                if now_s - since_s > _WAIT_MAX_S:
                    raise RuntimeError(f"{title!r} waits in vain, as may others: {', '.join(running)}")
                continue
            try:
                running[title] = script, next(script), now_s
            except StopIteration:
                del running[title]
        time.sleep(0.02)
    sender.flush()


def _is_over(wait: Wait, waited_s: float) -> bool:
    return wait() if callable(wait) else waited_s >= wait


def _disturb(stage: Stage, duration_s: float) -> None:
    """Kill the processor, and later the broker; start each again. Blocks until both serve."""
    begun_s = time.monotonic()
    time.sleep(duration_s * _PROCESSOR_KILLED_AT)
    _say("the processor is killed")
    stage.kill_processor()
    stage.start_processor()
    time.sleep(max(0.0, begun_s + duration_s * _BROKER_KILLED_AT - time.monotonic()))
    _say("the broker is killed")
    stage.restart_broker()


def _wait_for_rest(watch: Watch) -> None:
    """Wait until no transition has come for a while."""
    seen, since_s = watch.transitions.total(), time.monotonic()
    while time.monotonic() - since_s < _REST_S:
        time.sleep(0.2)
        if watch.transitions.total() != seen:
            seen, since_s = watch.transitions.total(), time.monotonic()


def _overflow_timers(stage: Stage, sender: RawSender, watch: Watch, timers_max: int) -> None:
    """Let more sessions time out with one record than a batch may fire, after an outage."""
    known, crowd = watch.transitions["T01"], timers_max + 100
    limits = Limits(init_ms=_CROWD_INIT_MS, release_limit_ms=600_000)
    keys = keys_of_partition(0, PARTITIONS, "acme")
    for n in range(crowd):
        actor = Actor(sender, watch, "crowd")
        actor.agent.key = next(keys)
        value, _ = actor.made("session_created", {"event_id": f"crowd-{n}", "occurred_at": n}, limits=limits)
        sender.send(actor.agent.key.encoded(), value)
    sender.flush()
    sent_s = time.monotonic()
    watch.wait_for("the crowd's sessions", lambda: watch.transitions["T01"] >= known + crowd, 60)
    if time.monotonic() - sent_s > _CROWD_INIT_MS / 1_000 - 1:
        raise RuntimeError("the machine is too slow: the crowd's limits end while its sessions are made")
    stage.kill_processor()
    time.sleep(max(OUTAGE_MS, _CROWD_INIT_MS) / 1_000 + 1 - (time.monotonic() - sent_s))
    former = watch.transitions["T03"]
    stage.start_processor()
    watch.wait_for("the crowd's time-outs", lambda: watch.transitions["T03"] >= former + crowd, 120)


def _play(runs: list[Run], folder: Path, release: str, settings: RecordedSettings) -> RecordedLog:
    plan = make_plan(runs, demo_id=release, seed=1, speed=_SPEED)
    with Stage(folder) as stage, Watch(stage.kafka) as watch:
        sender = RawSender(stage.kafka)
        with (
            PlanRunner(plan, stage.environ, stage.tokens, folder, lambda text: _say(f"trouble: {text}")) as runner,
            ThreadPoolExecutor(3, "recording") as pool,
        ):
            parts = [
                pool.submit(runner.run_plan, _progress(watch)),
                pool.submit(_perform_scripts, sender, watch),
                pool.submit(_disturb, stage, plan.duration_s),
            ]
            for part in parts:
                part.result()
            _say("waiting for the last limits")
            _wait_for_rest(watch)
        _say("a crowd times out at once")
        _overflow_timers(stage, sender, watch, settings.timers_max)
        stage.stop_processor()
        _say("reading the topics")
        return read_topics(stage.kafka, settings)


def _progress(watch: Watch) -> Callable[[str], None]:
    lock, reported_s = threading.Lock(), [0.0]

    def tell(text: str) -> None:
        with lock:
            if time.monotonic() - reported_s[0] >= 10:
                reported_s[0] = time.monotonic()
                _say(f"{text}; {watch.transitions.total()} transitions, {watch.reasons.total()} rejections")

    return tell


def read_topics(kafka: KafkaSettings, settings: RecordedSettings) -> RecordedLog:
    """Return what is committed, in full: the events that were folded, and all outputs.

    Raises `RuntimeError` if the changelog was compacted, or a batch is missing.
    """
    outputs: dict[str, dict[int, list[Output]]] = {}
    for topic in OUTPUT_TOPICS:
        written = (
            (stored.partition, Output(stored.key, stored.value, tuple(stored.headers)))
            for stored in read_topic(kafka, getattr(kafka.topics, topic), _READ_TIMEOUT_S)
        )
        outputs[topic] = by_partition(without_acknowledgements(written) if topic == "batches" else written)
    ends: dict[int, int] = {}
    for partition, changelog in outputs["changelog"].items():
        borders = read_borders(changelog)
        ends[partition] = borders[-1].next_offset
        if len(borders) != len(outputs["batches"][partition]):
            raise RuntimeError(f"partition {partition}: the changelog was compacted, or a batch is missing")
    events = by_partition(
        (stored.partition, LoggedEvent(*stored[1:5], tuple(stored.headers)))
        for stored in read_topic(kafka, kafka.topics.events, _READ_TIMEOUT_S)
        if stored.offset < ends[stored.partition]
    )
    return RecordedLog(settings, events, outputs)


def _shortened(log: RecordedLog) -> RecordedLog:
    """Return the log with a SHA-256 for each output beyond the first sessions."""
    first = _first_sessions(log.events)

    def stored(output: Output | bytes) -> Output | bytes:
        whole = not isinstance(output, Output) or not _is_session(output.key) or output.key in first
        return output if whole or not isinstance(output, Output) else comparable(output).digest()

    outputs = {
        topic: {partition: list(map(stored, records)) for partition, records in partitions.items()}
        for topic, partitions in log.outputs.items()
    }
    return log._replace(outputs=outputs)


def _first_sessions(events: EventsByPartition) -> set[bytes]:
    began: dict[bytes, tuple[int, int, int]] = {}
    for partition, records in events.items():
        for event in records:
            if event.key is not None and _is_session(event.key):
                began.setdefault(event.key, (event.timestamp_ms, partition, event.offset))
    return set(sorted(began, key=began.__getitem__)[:FULL_SESSIONS])


def _is_session(key: bytes | None) -> bool:
    try:
        parse_key(key)
    except Invalid:
        return False
    return True


def _full(log: RecordedLog, topic: str) -> list[Output]:
    return [output for records in log.outputs[topic].values() for output in records if isinstance(output, Output)]


def main() -> int:
    """Record; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.recorded.record", description=__doc__)
    parser.add_argument("release", help="the version, for example 0.2.0")
    parser.add_argument("--runs", type=Path, required=True, help="recorded agent runs, NDJSON, gzipped or not")
    parser.add_argument("--sessions", type=int, default=600, help="play so many of the runs (default 600)")
    given = parser.parse_args()
    target = FOLDER / given.release
    if target.exists():
        parser.error(f"{target} exists, and a recording is never changed; record another release")
    settings = settings_in_force(given.release, TOPIC_PREFIX, PARTITIONS, OUTAGE_MS, OUTAGE_GRACE_MS)
    with tempfile.TemporaryDirectory(prefix="sessionary-recorded-") as folder:
        log = _play(read_runs(given.runs, given.sessions), Path(folder), given.release, settings)
    transitions = Counter(filter(None, map(transition_of, _full(log, "audit"))))
    reasons = Counter(map(reason_of, _full(log, "rejected")))
    _say("\n".join(f"{name:24}{count:7}" for name, count in sorted({**transitions, **reasons}.items())))
    if rare := too_rare(transitions, reasons):
        _say(f"nothing is written; these came too rarely: {', '.join(rare)}")
        return 1
    summary = {
        "sessions_of_runs": given.sessions,
        "events": sum(map(len, log.events.values())),
        **{topic: sum(map(len, partitions.values())) for topic, partitions in log.outputs.items()},
        "transitions": dict(sorted(transitions.items())),
        "reasons": dict(sorted(reasons.items())),
    }
    with tempfile.TemporaryDirectory(prefix="sessionary-recorded-") as folder:
        draft = Path(folder) / given.release
        size = write_log(draft, _shortened(log), summary)
        if size > BYTES_MAX:
            _say(f"nothing is written: {size} bytes are more than {BYTES_MAX}; play fewer runs with --sessions")
            return 1
        shutil.copytree(draft, target)
    _say(f"{target.relative_to(FOLDER.parent)}: {size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
