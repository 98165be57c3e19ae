"""A worker takes the keys of a file that was replaced, without a restart."""

import asyncio
import json
import logging
from pathlib import Path

import pytest

from sessionary.schemas.signatures import SigningKeys
from sessionary.stream_processors import worker
from sessionary.stream_processors.runtime.job import partition_settings
from sessionary.stream_processors.settings import ProcessorSettings
from sessionary.stream_processors.signing_keys import KeyFile
from sessionary.stream_processors.worker import Processor

OLD, NEW = {"k1": "o" * 32}, {"k2": "n" * 32}
KEY, VALUE = b"acme:s1", b"an event"


def settings_of(path: Path) -> ProcessorSettings:
    environ = {"SESSIONARY_BOOTSTRAP_SERVERS": "127.0.0.1:1", "SESSIONARY_SIGNING_KEYS_FILE": str(path)}
    return ProcessorSettings.from_env({**environ, "SESSIONARY_API_PORT": "0"})


def replace_file(path: Path, text: str) -> None:
    """Put another file in the place of the keys, as tools that deploy secrets do."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text, "utf-8")
    fresh.replace(path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "keys.json"
    path.write_text(json.dumps(OLD), "utf-8")
    return path


def test_open_partitions_know_the_keys_of_a_file_that_was_replaced(path: Path) -> None:
    settings = settings_of(path)
    file, keys_of_partition = KeyFile(settings), partition_settings(settings).keys
    signature = SigningKeys(NEW).sign(KEY, VALUE)
    assert keys_of_partition.find_fault(KEY, VALUE, [signature]) == "it is signed by key k2, which is not known here"
    replace_file(path, json.dumps({**NEW, **OLD}))
    file.refresh()
    assert keys_of_partition.find_fault(KEY, VALUE, [signature]) is None
    assert keys_of_partition.find_fault(KEY, VALUE, [SigningKeys(OLD).sign(KEY, VALUE)]) is None
    assert settings.keys.sign(KEY, VALUE) == signature  # the first one signs


@pytest.mark.parametrize("text", ["{}", '{"k1": "short"}', "no JSON"])
def test_a_file_that_cannot_be_used_changes_nothing_and_is_told_once(
    path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = settings_of(path)
    file = KeyFile(settings)
    replace_file(path, text)
    for _ in range(3):
        file.refresh()
    assert settings.keys.sign(KEY, VALUE) == SigningKeys(OLD).sign(KEY, VALUE)
    (told,) = caplog.records
    assert "stay in force" in told.getMessage()
    assert "short" not in told.getMessage()
    path.unlink()
    file.refresh()
    assert len(caplog.records) == 1
    caplog.set_level(logging.INFO)
    replace_file(path, json.dumps(OLD))
    file.refresh()
    assert "can be used again" in caplog.text


def test_a_key_that_goes_is_named_for_what_it_signed_counts_no_longer(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = settings_of(path)
    file = KeyFile(settings)
    replace_file(path, json.dumps(NEW))
    file.refresh()
    assert "known no longer (k1)" in caplog.text
    fault = settings.keys.find_fault(KEY, VALUE, [SigningKeys(OLD).sign(KEY, VALUE)])
    assert fault == "it is signed by key k1, which is not known here"
    assert (OLD["k1"] in caplog.text, NEW["k2"] in caplog.text) == (False, False)


def test_a_worker_that_runs_looks_at_the_file(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_REREAD_S", 0.0)
    settings = settings_of(path)

    async def run() -> None:
        processor = Processor(settings, str(tmp_path))
        duty = asyncio.create_task(processor._reread_files())
        replace_file(path, json.dumps(NEW))
        async with asyncio.timeout(60):
            while settings.keys.sign(KEY, VALUE) != SigningKeys(NEW).sign(KEY, VALUE):
                await asyncio.sleep(0)
        duty.cancel()

    asyncio.run(run())
