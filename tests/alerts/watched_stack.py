"""The local stack, with the metrics of every part for Prometheus, and parts that can be stopped."""

import os
import signal
from dataclasses import replace
from pathlib import Path

from sessionary.infra.local.supervisor import Part
from sessionary.infra.metrics_targets import TARGETS_FILE
from sessionary.infra.stack import LAG_EXPORTER, Stack
from tests.support.waiting import wait_until

_RESTART_S = 180.0
# The exporter asks ClickHouse at once instead of every half minute.
_VARIABLES = {"SESSIONARY_KPI_INTERVAL_S": "1", "SESSIONARY_INTEGRITY_INTERVAL_S": "10"}


class WatchedStack(Stack):
    """A stack whose lag exporter is quick. Its data is in a folder of its own, its logs are not."""

    def __init__(self, data: Path, logs: Path) -> None:
        """Choose ports; start nothing yet. `logs`: the folder of the parts' logs."""
        self._logs = logs
        super().__init__(data)

    @property
    def log_folder(self) -> Path:
        """The folder of the processes' logs."""
        return self._logs

    @property
    def targets_file(self) -> Path:
        """The file that tells Prometheus where the parts serve their metrics."""
        return self.data / TARGETS_FILE

    @property
    def ports(self) -> list[int]:
        """All ports of the stack but the broker's second one."""
        addresses = self.environ["SESSIONARY_BOOTSTRAP_SERVERS"], self.environ["SESSIONARY_CLICKHOUSE_URL"]
        return [
            *(target.port for target in self.targets),
            *(int(address.rpartition(":")[2]) for address in addresses),
        ]

    @property
    def exporter_port(self) -> int:
        """Where the lag exporter serves its metrics."""
        return next(target.port for target in self.targets if target.part == LAG_EXPORTER)

    def freeze_part(self, part: str) -> None:
        """Stop a part as a hung machine does: it neither works nor ends."""
        os.killpg(self._pid_of(part), signal.SIGSTOP)

    def restart_part(self, part: str) -> None:
        """Kill a part, and wait until its supervisor has started it again."""
        former = self._pid_of(part)
        os.killpg(former, signal.SIGKILL)
        wait_until(lambda: self._supervisor.pid(part) not in (None, former), _RESTART_S, f"{part} to be started again")

    def _pid_of(self, part: str) -> int:
        pid = self._supervisor.pid(part)
        if pid is None:
            raise AssertionError(f"{part} does not run; its log is {self.log_folder / part}.log")
        return pid

    def _make_parts(self) -> list[Part]:
        return [
            replace(part, env={**(part.env or {}), **_VARIABLES}) if part.name == LAG_EXPORTER else part
            for part in super()._make_parts()
        ]
