"""A broker whose clock leaps ahead and back, under load, and the worker whose clock is right."""

import json
import re
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sessionary.infra.cli.app import run
from sessionary.infra.local.kafka.cluster import LocalBroker
from sessionary.producers import SessionClient
from sessionary.schemas.records import AuditRecord
from sessionary.schemas.settings import KafkaSettings
from tests.integration.pipeline_rig import TENANT, TOKEN, PipelineRig
from tests.integration.processor_load import changelog_of
from tests.integration.test_no_false_timeouts import (
    OUTAGE_GRACE_MS,
    SESSIONS,
    heartbeat_sessions,
    read_timeouts,
    wait_applied,
)
from tests.integration.test_processor_api import get
from tests.support import read_records
from tests.support.logs import log_folder
from tests.support.metrics_page import metric_value
from tests.support.pipelines import new_pipeline
from tests.support.processes import Processes
from tests.support.shifted_clock import ShiftedClock, needs_compiler
from tests.support.waiting import wait_until

pytestmark = needs_compiler

LEAP_S, AHEAD_S_MAX = 600, 60
TOKENS = json.dumps({TOKEN: TENANT, "token-op": {"principal": "on-call", "roles": ["operator"]}})


class ShiftedPipeline:
    """A broker and a worker, each with a clock of its own."""

    def __init__(self, folder: Path, processes: Processes) -> None:
        self.passed_s = 0
        self.broker_clock, self.worker_clock = ShiftedClock(folder / "broker"), ShiftedClock(folder / "worker")
        self.broker = LocalBroker(folder / "kafka", None, log_folder() / "test_clock_leaps.broker.log")
        with self.broker_clock.preload():
            self.broker.start()
        self.broker.wait_ready()
        self.kafka: KafkaSettings = new_pipeline(self.broker.bootstrap_servers)
        self.rig = PipelineRig(self.kafka, None, processes)
        with self.worker_clock.preload():
            self.rig.start_processor(outage_grace_ms=str(OUTAGE_GRACE_MS), api_tokens=TOKENS)

    def partitions(self) -> list[Any]:
        """Return the control API's list of partitions."""
        answer = get(f"{self.rig.control_url}/v1/partitions", "token-op")
        return answer.body["partitions"] if answer.status == 200 else []

    def halted(self) -> list[Any]:
        """Return the halted partitions."""
        return [partition for partition in self.partitions() if partition["state"] == "halted"]

    def retry_halted(self) -> bool:
        """Open all halted partitions again; return whether all are open then."""
        self.retry_once()
        return [partition["state"] for partition in self.partitions()] == ["open"] * self.kafka.partitions

    def retry_once(self) -> None:
        """Open all halted partitions again; one whose next record is ahead halts once more."""
        for partition in self.halted():
            get(f"{self.rig.control_url}/v1/partitions/{partition['partition']}/retry", "token-op", "POST")

    def pass_seconds(self, seconds: int) -> None:
        """Let time pass for the worker and for the broker, whose clocks are equal."""
        self.passed_s += seconds
        self.worker_clock.shift_by(self.passed_s)  # first, so that the broker is not ahead of it
        self.broker_clock.shift_by(self.passed_s)

    def clocks_ahead_s(self) -> list[float]:
        """Return how far the log clocks are ahead of the worker's, of open partitions."""
        series = "sessionary_processor_clock_ahead_seconds"
        found = [
            metric_value(self.rig.api_port, f'{series}{{partition="{number}"}}')
            for number in range(self.kafka.partitions)
        ]
        return [ahead_s for ahead_s in found if ahead_s is not None]


@pytest.fixture
def pipeline(tmp_path: Path, processes: Processes) -> Iterator[ShiftedPipeline]:
    started = ShiftedPipeline(tmp_path, processes)
    try:
        yield started
    finally:
        processes.stop()
        started.broker.stop()


def test_a_leap_of_ten_minutes_halts_before_a_deadline_fires_and_ends_in_no_false_timeout(
    pipeline: ShiftedPipeline, tmp_path: Path
) -> None:
    kafka, rig = pipeline.kafka, pipeline.rig
    with (
        SessionClient(
            tenant_id=TENANT, service_id="billing", agent_id="a", settings=rig.client_settings(tmp_path)
        ) as client,
        heartbeat_sessions(client) as sessions,
    ):
        wait_applied(kafka, "T02", SESSIONS)
        live = {partition["partition"] for partition in pipeline.partitions() if partition["next_offset"]}
        pipeline.broker_clock.shift_by(LEAP_S)
        wait_until(lambda: {found["partition"] for found in pipeline.halted()} == live, 60, "the partitions to halt")
        pipeline.broker_clock.shift_by(0)
        for found in pipeline.halted():
            assert found["reason"] == "clock_ahead"
            (offset,) = re.findall(r"the record at offset (\d+) ", found["detail"])
            assert int(offset) >= found["next_offset"]  # ticks in between may be folded and not committed
        _, positions = changelog_of(kafka)
        for partition in live:
            assert positions[partition].clock_ms < (time.time() + AHEAD_S_MAX) * 1_000
        since = {found["partition"]: found["halted_at_ms"] for found in pipeline.halted()}
        pipeline.retry_once()

        def are_halted_again() -> bool:
            again = {found["partition"]: found["halted_at_ms"] for found in pipeline.halted()}
            return again.keys() == live and all(again[partition] != since[partition] for partition in live)

        wait_until(are_halted_again, 60, "the partitions to halt again, as the stamps are still there")
        assert read_timeouts(kafka) == []

        pipeline.pass_seconds(LEAP_S - AHEAD_S_MAX)
        wait_until(pipeline.retry_halted, 60, "the partitions to go on")
        # A partition that has just opened has its former clock until it has folded the next record.
        wait_until(lambda: max(pipeline.clocks_ahead_s(), default=0.0) > 0, 30, "the stamps ahead to be folded")
        assert max(pipeline.clocks_ahead_s()) <= AHEAD_S_MAX
        silent = sessions.pop()
        silent.lifecycle.detach()
        pipeline.pass_seconds(AHEAD_S_MAX)
        wait_applied(kafka, "T06", 1)
    wait_applied(kafka, "T13", SESSIONS - 1)
    assert [record.session_id for record in read_timeouts(kafka)] == [silent.session_id]


@pytest.mark.parametrize("leap_s", [LEAP_S, 86_400])
@pytest.mark.parametrize("actor", ["on-call", "processor"])
def test_a_repaired_clock_lets_the_partitions_go_on_without_a_false_timeout(
    pipeline: ShiftedPipeline,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    actor: str,
    leap_s: int,
) -> None:
    """The operator repairs at once, or else the processor does within half a minute."""
    kafka, rig = pipeline.kafka, pipeline.rig
    monkeypatch.setenv("SESSIONARY_CONTROL_URL", rig.control_url)
    monkeypatch.setenv("SESSIONARY_OPERATOR_TOKEN", "token-op")

    def repair(partition: int) -> int:
        return run(["partition", "repair-clock", str(partition), "--reason", "the clock server was wrong"])

    def repair_once(partition: int) -> bool:
        is_halted = partition in {found["partition"] for found in pipeline.halted()}
        return not is_halted or repair(partition) == 0

    with (
        SessionClient(
            tenant_id=TENANT, service_id="billing", agent_id="a", settings=rig.client_settings(tmp_path)
        ) as client,
        heartbeat_sessions(client) as sessions,
    ):
        wait_applied(kafka, "T02", SESSIONS)
        live = {partition["partition"] for partition in pipeline.partitions() if partition["live_rows"]}
        leapt_s = time.time()
        assert repair(min(live)) == 5
        assert "needs no repair" in capfd.readouterr().err
        pipeline.broker_clock.shift_by(leap_s)
        wait_until(lambda: {found["partition"] for found in pipeline.halted()} >= live, 60, "the partitions to halt")
        halted = {found["partition"] for found in pipeline.halted()}
        assert repair(min(live)) == 5
        assert "from this worker's: correct the wrong one first" in capfd.readouterr().err
        pipeline.broker_clock.shift_by(0)
        for partition in halted if actor == "on-call" else ():
            wait_until(partial(repair_once, partition), 30, f"partition {partition} to be repaired")
        wait_until(lambda: pipeline.halted() == [], 90, "the partitions to go on")
        _, positions = changelog_of(kafka)
        for partition in halted:
            # One without a session moves no further, however long the others take.
            assert leapt_s - AHEAD_S_MAX < positions[partition].clock_ms / 1_000 < time.time() + AHEAD_S_MAX
        silent = sessions.pop()
        silent.lifecycle.detach()
        wait_applied(kafka, "T06", 1)
    wait_applied(kafka, "T13", SESSIONS - 1)
    assert [record.session_id for record in read_timeouts(kafka)] == [silent.session_id]
    audits = [record for record in read_records(kafka, kafka.topics.audit) if isinstance(record, AuditRecord)]
    repairs = [record for record in audits if record.event_type == "clock_repaired"]
    assert {record.source_partition for record in repairs} == halted
    # On a busy machine the processor may be the first, after half a minute.
    assert {record.actor for record in repairs} <= {actor, "processor"}
