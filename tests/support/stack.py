"""One broker and one ClickHouse endpoint for a test run, started when the first test needs them.

With `--numprocesses` the controlling process starts both and exports their addresses to its
workers. Set the same variables to test against running servers.
"""

import os
import shutil
import tempfile
from pathlib import Path

from sessionary.infra.local.clickhouse.endpoint import LocalClickHouse
from sessionary.infra.local.kafka.cluster import LocalBroker
from tests.support.logs import log_folder

BOOTSTRAP_VARIABLE = "TESTS_BOOTSTRAP"
CLICKHOUSE_VARIABLE = "TESTS_CLICKHOUSE_URL"


class Stack:
    """The shared servers. Their data is in a temporary folder that `close` removes."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._broker: LocalBroker | None = None
        self._clickhouse: LocalClickHouse | None = None

    def bootstrap_servers(self) -> str:
        """Return the broker's address; start it if it does not run."""
        if BOOTSTRAP_VARIABLE not in os.environ:
            self.start_broker().wait_ready()
        return os.environ[BOOTSTRAP_VARIABLE]

    def clickhouse_url(self) -> str:
        """Return the endpoint's address; start it if it does not run."""
        if CLICKHOUSE_VARIABLE not in os.environ:
            self.start_clickhouse().wait_ready()
        return os.environ[CLICKHOUSE_VARIABLE]

    def start_all(self) -> None:
        """Start both in parallel if they do not run, and wait until they are ready."""
        broker = None if BOOTSTRAP_VARIABLE in os.environ else self.start_broker()
        clickhouse = None if CLICKHOUSE_VARIABLE in os.environ else self.start_clickhouse()
        if broker is not None:
            broker.wait_ready()
        if clickhouse is not None:
            clickhouse.wait_ready()

    def start_broker(self) -> LocalBroker:
        """Start the broker and export its address; does not wait."""
        self._broker = LocalBroker(self._data("kafka"), None, log_folder() / "broker.log")
        self._broker.start()
        os.environ[BOOTSTRAP_VARIABLE] = self._broker.bootstrap_servers
        return self._broker

    def start_clickhouse(self) -> LocalClickHouse:
        """Start the endpoint and export its address; does not wait."""
        self._clickhouse = LocalClickHouse(self._data("clickhouse"), None, log_folder() / "clickhouse.log")
        self._clickhouse.start()
        os.environ[CLICKHOUSE_VARIABLE] = self._clickhouse.url
        return self._clickhouse

    def close(self) -> None:
        """Stop the servers that this object started, and remove their data."""
        if self._clickhouse is not None:
            self._clickhouse.stop()
        if self._broker is not None:
            self._broker.stop()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _data(self, name: str) -> Path:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="sessionary-tests-"))
        return self._folder / name
