"""The client's settings."""

from pathlib import Path

import pytest

from sessionary.producers import (
    ProducerSettings,
    SettingsError,
)
from tests.core.producers.kafka_clients import new_settings


def test_settings_come_from_the_environment() -> None:
    written = {
        "delivery_policy": "drop",
        "control_url": "http://c",
        "session_id_version": "7",
        "handle_sigterm": "false",
    }
    settings = ProducerSettings.from_env({f"SESSIONARY_{name.upper()}": value for name, value in written.items()})
    assert {name: getattr(settings, name) for name in written} == {
        **written,
        "session_id_version": 7,
        "handle_sigterm": False,
    }
    with pytest.raises(SettingsError, match="SESSIONARY_SESSION_ID_VERSION"):
        ProducerSettings.from_env({"SESSIONARY_SESSION_ID_VERSION": "five"})


def test_two_clusters_never_share_a_spool(tmp_path: Path) -> None:
    folders = {new_settings(servers, tmp_path).spool_folder for servers in ("a:1,b:2", "b:2, a:1", "c:3")}
    assert len(folders) == 2
