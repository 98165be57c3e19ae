"""A session moves between two services, through a real broker, a processor and processes."""

import json
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from sessionary.infra.local.process import Child
from sessionary.producers import CleanupRequest, MigrationAborted, Session, SessionClient, SessionFenced
from sessionary.schemas.codec import Decoder, Event
from sessionary.schemas.records import AuditRecord, RejectedEvent
from sessionary.schemas.settings import KafkaSettings
from tests.integration.pipeline_rig import TENANT, TOKEN, PipelineRig, started_pipeline
from tests.support.pipelines import environment
from tests.support.processes import Processes
from tests.support.reading import read_records, read_topic
from tests.support.waiting import wait_until

TARGET = "shipping"
_SESSIONS = 20
_PAUSE_S = 0.005


class MigrationRig:
    """A client of billing, and processes of shipping."""

    def __init__(self, pipeline: PipelineRig, processes: Processes, folder: Path) -> None:
        self._pipeline, self._kafka = pipeline, pipeline.kafka
        self._processes, self._folder = processes, folder
        self._targets = 0
        self.errors: list[Exception] = []
        self.cleanups: list[CleanupRequest] = []

    def source(self) -> SessionClient:
        client = SessionClient(
            tenant_id=TENANT,
            service_id="billing",
            agent_id="source",
            settings=self._pipeline.client_settings(self._folder, "source"),
            on_error=self.errors.append,
        )
        client.on_cleanup(self.cleanups.append)
        return client

    def start_target(self, *options: str) -> Child:
        self._targets += 1
        env = environment(
            self._kafka,
            control_url=self._pipeline.control_url,
            api_token=TOKEN,
            spool_dir=str(self._folder / f"target-{self._targets}"),
            verdict_timeout_s="120",
        )
        name = f"target-{self._targets}"
        return self._processes.start("tests.support.migration_target", TARGET, *options, env=env, name=name)

    def audits(self, session: Session) -> Sequence[AuditRecord]:
        records = read_records(self._kafka, self._kafka.topics.audit)
        return [each for each in records if isinstance(each, AuditRecord) and each.session_id == session.session_id]


def lines_of(target: Child, kind: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in target.log.read_text().splitlines() if line.endswith("}")]
    return [line for line in found if line["kind"] == kind]


def test_a_session_moves_to_another_service_and_works_on_there(
    pipeline: PipelineRig, processes: Processes, tmp_path: Path
) -> None:
    rig = MigrationRig(pipeline, processes, tmp_path)
    target = rig.start_target()
    with rig.source() as source:
        session = source.session(user_id="u", state={"steps": 0})
        session.update_state({"steps": 1, "cart": ["ü", 3.5]})
        session.message("user", "and the other shoe?")
        session.snapshot()
        head = session.sync().snapshot_id
        done = session.migration.move(to=TARGET, ttl_s=180.0, reason="rebalanced")
        assert (done.from_service, done.to_service, done.epoch) == ("billing", TARGET, 2)
        for verb in (lambda: session.activity("x"), session.sync, session.close):
            with pytest.raises(SessionFenced):
                verb()
        wait_until(lambda: lines_of(target, "arrived"), 60, "the session to work on")
        (arrived,) = lines_of(target, "arrived")
        assert arrived["before"] == {"steps": 1, "cart": ["ü", 3.5]}
        assert arrived["state"] == {"steps": 2, "cart": ["ü", 3.5]}
        assert (arrived["head"], arrived["turns"]) == (head, [1])
        wait_until(lambda: rig.cleanups, 60, "the source to be asked to clean up")
        assert [(each.reason_code, each.service_id, each.epoch) for each in rig.cleanups] == [
            ("migrated", "billing", 1)
        ]
        wait_until(lambda: any(line.kind == "release" for line in rig.audits(session)), 60, "its answer")
        shared = source.attach(session.session_id)
        view = shared.sync()
        assert (view.owner_service, view.epoch, view.version) == (TARGET, 2, 3)
    assert rig.errors == []
    trail = rig.audits(session)
    assert not any(line.kind == "rejection" for line in trail)
    assert [
        (line.migration_step, line.from_service, line.to_service) for line in trail if line.kind == "migration"
    ] == [(step, "billing", TARGET) for step in ("offered", "prepared", "completed")]


def test_a_migration_to_a_service_that_nobody_runs_is_aborted_and_the_session_goes_on(
    pipeline: PipelineRig, processes: Processes, tmp_path: Path
) -> None:
    rig = MigrationRig(pipeline, processes, tmp_path)
    with rig.source() as source, source.session(user_id="u", state={"steps": 0}) as session:
        with pytest.raises(MigrationAborted) as raised:
            session.migration.move(to=TARGET, ttl_s=1.0)
        assert raised.value.reason_code == "target_silent"
        assert session.update_state({"steps": 1}) == 2
        view = session.sync()
        assert view.migration is not None
        assert (view.state, view.epoch, view.migration.step) == ("Active", 1, "aborted")
    assert rig.errors == []


def test_a_target_that_dies_before_it_accepts_is_followed_by_the_next_one(
    kafka: KafkaSettings, processes: Processes, tmp_path: Path
) -> None:
    rig = MigrationRig(started_pipeline(kafka, processes), processes, tmp_path)
    first = rig.start_target("--hang")
    with rig.source() as source:
        session = source.session(user_id="u", state={"steps": 0})

        def replace_target() -> Child:
            wait_until(lambda: lines_of(first, "held"), 120, "the session to be held")
            first.signal(signal.SIGKILL)
            return rig.start_target()

        with ThreadPoolExecutor(1) as pool:
            replaced = pool.submit(replace_target)
            done = session.migration.move(to=TARGET, ttl_s=300.0)
        second = replaced.result()
        assert done.epoch == 2
        wait_until(lambda: lines_of(second, "arrived"), 60, "the session to work on")
        (arrived,) = lines_of(second, "arrived")
        assert arrived["state"] == {"steps": 1}
    assert rig.errors == []


def test_the_owner_works_until_the_session_is_held_and_never_after_the_target(
    kafka: KafkaSettings, processes: Processes, tmp_path: Path
) -> None:
    rig = MigrationRig(started_pipeline(kafka, processes), processes, tmp_path)
    target = rig.start_target()
    moved: set[str] = set()
    with rig.source() as source:
        for number in range(_SESSIONS):
            session = source.session(user_id="u", state={"steps": 0})
            has_failed = threading.Event()
            with ThreadPoolExecutor(1) as pool:
                work = pool.submit(work_until_fenced, session, has_failed)
                try:
                    session.migration.move(to=TARGET, ttl_s=180.0)
                except BaseException:
                    has_failed.set()  # the pool waits for its work
                    raise
                assert work.result() > 0
            moved.add(session.session_id)
            wait_until(lambda count=number + 1: len(lines_of(target, "arrived")) == count, 60, "its work there")  # type: ignore[misc]
    freezes_ms = find_freezes_ms(kafka)
    assert len(freezes_ms) == len(moved)
    assert freezes_ms[0] >= 0  # no event of the owner was accepted after one of the target
    p50 = freezes_ms[len(freezes_ms) // 2]
    sys.stdout.write(f"{len(moved)} migrations: freeze p50 {p50} ms, max {freezes_ms[-1]} ms\n")


def work_until_fenced(session: Session, has_failed: threading.Event) -> int:
    """Send events until the session has left, or cannot; return how many."""
    count = 0
    while not has_failed.is_set():
        try:
            session.activity("work")
        except SessionFenced:
            return count
        count += 1
        time.sleep(_PAUSE_S)  # spreads the events; nothing waits for it
    return count


def find_freezes_ms(kafka: KafkaSettings) -> list[int]:
    """Return of each session the log time between the owner's last work and the target's first.

    Work that was rejected does not count. In order of their length.
    """
    rejected = (record for record in read_records(kafka, kafka.topics.rejected) if isinstance(record, RejectedEvent))
    rejected_at = {(record.source_partition, record.source_offset) for record in rejected}
    decoder, at_ms = Decoder(), defaultdict[tuple[str, str], list[int]](list)
    for stored in read_topic(kafka, kafka.topics.events):
        event = decoder.decode_event(stored.value)
        if not isinstance(event, Event) or (stored.partition, stored.offset) in rejected_at:
            continue
        if event.envelope.event_type == "session_activity":
            at_ms[event.envelope.session_id, event.envelope.service_id].append(stored.timestamp_ms)
    sessions = {session_id for session_id, _ in at_ms}
    return sorted(at_ms[each, TARGET][0] - at_ms[each, "billing"][-1] for each in sessions)
