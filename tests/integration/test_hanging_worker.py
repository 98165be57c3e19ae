"""A worker with a part that hangs keeps its heartbeats; it ends, and another worker goes on."""

import signal
from pathlib import Path

import pytest

from sessionary.schemas.settings import KafkaSettings
from sessionary.schemas.telemetry.role_logs import EXIT_HUNG
from tests.integration.processor_load import BackgroundLoad, check_everything, wait_for_writers, wait_judged
from tests.integration.test_processor_road import SHORT
from tests.support import Processes
from tests.support.pipelines import environment

START_S = 180.0


@pytest.mark.parametrize(("part", "name"), [("loop", "the event loop"), ("fetching", "fetching")])
def test_another_worker_has_the_partitions_of_one_that_hangs(
    part: str, name: str, kafka: KafkaSettings, processes: Processes, tmp_path: Path
) -> None:
    hangs = tmp_path / "hangs"
    first, second = (
        processes.start(
            "tests.support.hanging_worker",
            part,
            str(tmp_path / file),
            env=environment(kafka, instance=instance, api_port="0"),
            name=f"processor-{instance}",
        )
        for instance, file in (("w1", "never"), ("w2", hangs.name))
    )
    with BackgroundLoad(kafka, sessions=60, rate=300, seed=13, limits=SHORT) as load:
        wait_for_writers(kafka, {"w1", "w2"}, START_S)
        hangs.touch()
        assert second.wait(START_S)
        wait_for_writers(kafka, {"w1"}, START_S)
    wait_judged(kafka, load.sent)
    assert second.exit_code == EXIT_HUNG
    said = second.log.read_text()
    assert f"the worker ends at once, for {name} " in said
    assert "in hang_or_call" in said
    first.signal(signal.SIGTERM)
    assert first.wait(START_S)
    assert first.exit_code == 0
    check_everything(kafka)
