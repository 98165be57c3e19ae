"""The local ClickHouse endpoint: the engine behind ClickHouse's HTTP interface, on loopback.

For development and tests. Production names a real ClickHouse; the same driver talks to both.
"""

from __future__ import annotations

import argparse
import http.client
import os
import signal
import sys
import threading
from pathlib import Path

from sessionary.infra.local.errors import LocalStackError, PortTaken
from sessionary.infra.local.ports import LOOPBACK, free_port, is_free
from sessionary.infra.local.process import Child, LocalServer
from sessionary.sinks.memory import keep_freed_memory

PASSWORD_VARIABLE = "SESSIONARY_CLICKHOUSE_PASSWORD"
"""The variable that passes the password to a child process; every user could read an argument."""


def run_clickhouse(data: Path, port: int, password: str | None = None) -> None:
    """Serve the folder until SIGTERM or SIGINT, then close it cleanly.

    Blocks; must run in the main thread. `password` None: no password is required.
    Raises `PortTaken`, `DataFolderLocked`, `StartFailed`.
    """
    keep_freed_memory()
    if not is_free(port):
        raise PortTaken(port, "ClickHouse")
    # The engine reads the time zone once; drivers expect UTC.
    os.environ["TZ"] = "UTC"
    # Imported here: a parent that only starts the child must not load 0.5 GB of engine.
    from sessionary.infra.local.clickhouse.engine import Engine
    from sessionary.infra.local.clickhouse.http_server import ClickHouseServer
    from sessionary.schemas.telemetry.role_logs import role_logger

    engine = Engine(data)
    server = ClickHouseServer(engine, port, password)

    def request_shutdown(_number: int, _frame: object) -> None:
        # shutdown() waits for the serving loop, which runs in this thread.
        threading.Thread(target=server.shutdown, daemon=True).start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, request_shutdown)
    role_logger(__name__).info("ClickHouse is ready: http://%(host)s:%(port)d", host=LOOPBACK, port=port)
    try:
        server.serve_forever(poll_interval=0.1)
    finally:
        server.server_close()
        engine.close()


def clickhouse_answers(port: int, timeout_s: float = 2.0) -> bool:
    """Return True if the endpoint on this loopback port answers a ping.

    Blocks up to `timeout_s`.
    """
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=timeout_s)
    try:
        connection.request("GET", "/ping")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


class LocalClickHouse(LocalServer):
    """The endpoint as a child process. The kernel ends it if this process dies.

    Data and port are kept: `start` after `stop` or `kill` serves the same rows at the same address.
    Not thread-safe.
    """

    def __init__(self, data: Path, port: int | None, log: Path, password: str | None = None) -> None:
        """`data`: the engine's folder, created if missing. `port`: None chooses a free one."""
        super().__init__("the ClickHouse endpoint", log)
        self.data = data.resolve()
        self._password = password
        self.port = port if port is not None else free_port()

    @property
    def url(self) -> str:
        """The address for an HTTP driver; it does not contain the password."""
        return f"http://{LOOPBACK}:{self.port}"

    def start(self) -> None:
        """Start the endpoint; do not wait until it serves.

        Raises `RuntimeError` if it runs already.
        """
        self.check_stopped()
        env = {**os.environ, "TZ": "UTC"}
        env.pop(PASSWORD_VARIABLE, None)
        if self._password is not None:
            env[PASSWORD_VARIABLE] = self._password
        module = ["-m", "sessionary.infra.local.clickhouse.endpoint"]
        self._child = Child(
            [sys.executable, *module, "--data", str(self.data), "--port", str(self.port)], self._log, env
        )

    def is_answering(self) -> bool:
        """Return True if the endpoint answers a ping."""
        return clickhouse_answers(self.port)


def main() -> int:
    """Serve as a program; the password comes from `PASSWORD_VARIABLE`. Return the exit code."""
    parser = argparse.ArgumentParser(prog="sessionary.infra.local.clickhouse.endpoint")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args()
    try:
        run_clickhouse(options.data, options.port, os.environ.get(PASSWORD_VARIABLE))
    except LocalStackError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
