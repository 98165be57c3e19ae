"""Commands are tested without any server."""

import os
from pathlib import Path

import pytest

from sessionary.infra.local.ports import free_port


@pytest.fixture(autouse=True)
def _no_stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No stack can be found: the folder is empty, and no process listens on the addresses."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("SESSIONARY_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SESSIONARY_BOOTSTRAP_SERVERS", f"127.0.0.1:{free_port()}")
    monkeypatch.setenv("SESSIONARY_CLICKHOUSE_URL", f"http://127.0.0.1:{free_port()}")
    # What refuses connections is asked until the wait ends; for no broker a short one will do.
    monkeypatch.setattr("sessionary.infra.topics._REACH_S", 0.3)
