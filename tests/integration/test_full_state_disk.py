"""A processor whose RocksDB disk, a small tmpfs, is full under load: it halts, and then goes on."""

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from sessionary.infra.local.ports import free_port
from sessionary.infra.local.process import Child
from sessionary.schemas.settings import KafkaSettings
from tests.integration.processor_load import (
    OUTAGE_GRACE_MS,
    OUTAGE_MS,
    BackgroundLoad,
    check_everything,
    count_judged,
    wait_judged,
)
from tests.integration.test_processor_api import get
from tests.support import Processes, environment, wait_until
from tests.support.full_disk import fill_disk, may_mount

TOKENS = json.dumps({"token-op": {"principal": "on-call", "roles": ["operator"]}})
# RocksDB reserves 17 MiB for a log, if there is as much room; then a full disk would show late.
DISK = "12m"
_MOUNT = 'mount -t tmpfs -o size="$0" tmpfs "$SESSIONARY_STATE_DIR" && exec "$@"'


class SmallDiskWorker:
    """A processor with RocksDB on a tmpfs of its own mount namespace."""

    def __init__(self, kafka: KafkaSettings, processes: Processes, state: Path) -> None:
        state.mkdir()
        self.url = f"http://127.0.0.1:{(port := free_port())}"
        fields = {"instance": "w1", "api_port": str(port), "api_tokens": TOKENS, "outage_ms": str(OUTAGE_MS)}
        fields |= {"outage_grace_ms": str(OUTAGE_GRACE_MS), "store": "rocksdb", "state_dir": str(state)}
        argv = ["unshare", "-Urm", "sh", "-c", _MOUNT, DISK, sys.executable, "-m", "sessionary.stream_processors"]
        self.child: Child = processes.run(argv, env=environment(kafka, **fields), name="processor")
        self.ballast = Path(f"/proc/{self.child.pid}/root{state}/ballast")

    def partitions(self) -> list[Any]:
        """Return the control API's list of partitions; empty while it does not answer."""
        with contextlib.suppress(OSError):
            answer = get(f"{self.url}/v1/partitions", "token-op")
            return answer.body["partitions"] if answer.status == 200 else []
        return []

    def count_states(self, state: str) -> int:
        """Return how many partitions have a state."""
        return [one["state"] for one in self.partitions()].count(state)

    def retry_halted(self) -> bool:
        """Open the halted partitions again; return whether all are open."""
        for one in self.partitions():
            if one["state"] == "halted":
                get(f"{self.url}/v1/partitions/{one['partition']}/retry", "token-op", "POST")
        return self.count_states("open") == 4


@pytest.mark.skipif(not may_mount(), reason="needs a user namespace that may mount")
def test_a_full_disk_halts_by_name_and_loses_nothing(
    kafka: KafkaSettings, processes: Processes, tmp_path: Path
) -> None:
    worker = SmallDiskWorker(kafka, processes, tmp_path / "state")
    wait_until(lambda: worker.count_states("open") == kafka.partitions, 60, "the worker to own its partitions")
    with BackgroundLoad(kafka, sessions=40, rate=200, seed=3) as load:
        wait_until(lambda: count_judged(kafka) > 300, 30, "some work", pause_s=0.3)
        fill_disk(worker.ballast)
        wait_until(lambda: worker.count_states("halted") == kafka.partitions, 30, "the partitions to halt")
        for one in worker.partitions():
            assert one["reason"] == "store_disk_full"
            assert str(tmp_path / "state") in one["detail"]
        worker.ballast.unlink()
        wait_until(worker.retry_halted, 30, "the partitions to go on")
    wait_judged(kafka, load.sent)
    assert worker.child.exit_code is None
    worker.child.stop(180)
    log = worker.child.log.read_text()
    assert log.count("is halted until its cause is removed: store_disk_full") == kafka.partitions
    assert "is opened again: " not in log  # by itself, after any other error
    check_everything(kafka)
