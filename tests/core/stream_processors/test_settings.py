"""What a worker's settings accept and show."""

import json
import re
from pathlib import Path

import pytest

from sessionary.schemas.errors import SettingsError
from sessionary.stream_processors.access import Caller
from sessionary.stream_processors.process import run_processor
from sessionary.stream_processors.quotas.settings import QuotaSettings
from sessionary.stream_processors.quotas.verdict_sender import run_quotas
from sessionary.stream_processors.settings import ProcessorSettings


def test_tokens_come_as_json_and_never_show() -> None:
    settings = ProcessorSettings.from_env({"SESSIONARY_API_TOKENS": '{"secret": "acme"}'})
    assert settings.api_tokens == {"secret": Caller(tenant="acme", principal="acme")}
    assert "secret" not in repr(settings)
    for text in ("secret", json.dumps({"secret": {"tenant": "secret!", "roles": ["secret"], "secret": "secret"}})):
        with pytest.raises(SettingsError) as caught:
            ProcessorSettings.from_env({"SESSIONARY_API_TOKENS": text})
        assert str(caught.value).startswith("SESSIONARY_API_TOKENS: ")
        assert "secret" not in str(caught.value)


SECRET = "a secret of at least 32 characters"


def test_signing_keys_come_from_a_file_or_as_json_and_never_show(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_text(json.dumps({"k2": SECRET, "k1": SECRET[::-1]}))
    named = {"SESSIONARY_SIGNING_KEYS_FILE": str(path)}
    for settings in (
        ProcessorSettings.from_env(named),
        ProcessorSettings.from_env({"SESSIONARY_SIGNING_KEYS": path.read_text()}),
        QuotaSettings.from_env(named),
    ):
        assert list(settings.signing_keys) == ["k2", "k1"]
        assert settings.keys.sign(None, b"value")[1].startswith(b"k2:")
        assert SECRET not in repr(settings)
    assert not ProcessorSettings.from_env({}).keys


def test_signing_keys_that_cannot_be_used_are_named_without_their_secrets(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    named = {"SESSIONARY_SIGNING_KEYS_FILE": str(path)}
    missing = f"SESSIONARY_SIGNING_KEYS_FILE: {path} does not exist; `sessionary topics apply` makes it"
    with pytest.raises(SettingsError, match=re.escape(missing)):
        ProcessorSettings.from_env(named)
    path.write_text(json.dumps({"k1": SECRET[:31]}))
    for environ in (named, {"SESSIONARY_SIGNING_KEYS": path.read_text()}):
        with pytest.raises(SettingsError, match="key 1: a secret is a text of at least 32 characters") as caught:
            ProcessorSettings.from_env(environ)
        assert str(caught.value).startswith(next(iter(environ)))
        assert SECRET[:31] not in str(caught.value)
    with pytest.raises(SettingsError, match="are both set: set one of them"):
        ProcessorSettings.from_env({**named, "SESSIONARY_SIGNING_KEYS": "{}"})


def test_a_worker_without_a_signing_key_does_not_start() -> None:
    with pytest.raises(SettingsError, match="SESSIONARY_SIGNING_KEYS_FILE is not set: it names"):
        run_processor(ProcessorSettings(bootstrap_servers="127.0.0.1:1"))
    with pytest.raises(SettingsError, match="SESSIONARY_SIGNING_KEYS_FILE is not set"):
        run_quotas(QuotaSettings(bootstrap_servers="127.0.0.1:1"))


def test_ticks_that_change_nothing_are_committed_once_a_minute() -> None:
    assert ProcessorSettings.from_env({}).tick_commit_interval_ms == 60_000
