"""What a client is opened with: a spool that cannot be used, and settings that are malformed."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from sessionary.producers import AsyncSessionClient, ClientClosed, ProducerSettings, SettingsError, SpoolUnusable
from sessionary.producers.delivery.spool import spool
from sessionary.producers.metrics import ClientMeter, Sample
from tests.core.producers.kafka_clients import new_client, new_settings

Break = Callable[[pytest.MonkeyPatch, Path], dict[str, object]]


def without_home(patch: pytest.MonkeyPatch, _: Path) -> dict[str, object]:
    patch.delenv("HOME", raising=False)
    patch.delenv("XDG_STATE_HOME", raising=False)
    patch.setattr(os, "getuid", lambda: 54_321)  # of no user
    return {"spool_dir": None}


def with_a_file_in_the_way(_: pytest.MonkeyPatch, folder: Path) -> dict[str, object]:
    (folder / "file").write_text("")
    return {"spool_dir": folder / "file" / "spool"}


def on_a_disk(number: int) -> Break:
    def break_disk(patch: pytest.MonkeyPatch, folder: Path) -> dict[str, object]:
        def fail(path: Path) -> object:
            raise OSError(number, os.strerror(number), str(path))

        patch.setattr(spool, "create_locked", fail)
        return {"spool_dir": folder}

    return break_disk


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        (without_home, "no home folder"),
        (with_a_file_in_the_way, "Not a directory"),
        (on_a_disk(errno.EROFS), "Read-only file system"),
        (on_a_disk(errno.EACCES), "Permission denied"),
        (on_a_disk(errno.ENOSPC), "No space left on device"),
    ],
)
def test_a_spool_that_cannot_be_used_is_reported_once_and_events_wait_in_memory(
    broken: Break, why: str, closed_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = broken(monkeypatch, tmp_path)
    settings = ProducerSettings.from_env(
        {},
        bootstrap_servers=closed_address,
        close_timeout_s=0.1,
        handle_sigterm=False,
        queue_bytes_max=1 << 16,
        **given,
    )
    errors: list[Exception] = []
    with new_client(settings, errors) as client:
        (reported,) = [error for error in errors if isinstance(error, SpoolUnusable)]
        assert "SESSIONARY_SPOOL_DIR" in str(reported)
        assert why in str(reported)
        assert "volume" in str(reported)
        assert client.delivery_policy == AsyncSessionClient.wrap(client).delivery_policy == "drop"
        assert ClientMeter(client).read_samples()["sessionary_client_policy_clients"] == [Sample("drop", 1)]
        assert not client.may_block
        session = client.session(user_id="u")
        for _ in range(200):
            session.activity("llm", "x" * 1_000)
        counters = client.counters
        assert counters.sent == 204
        assert 0 < counters.dropped < 204
    assert sum(isinstance(error, SpoolUnusable) for error in errors) == 1
    lost = counters.sent - counters.dropped
    (closed,) = [str(error) for error in errors if isinstance(error, ClientClosed)]
    assert closed == (
        f"{lost} events were not acknowledged before the client closed: {lost} are lost. 0 were acknowledged, "
        f"{counters.dropped} were dropped or given up before"
    )


def test_a_spool_that_works_is_in_force(closed_address: str, tmp_path: Path) -> None:
    errors: list[Exception] = []
    with new_client(new_settings(closed_address, tmp_path), errors) as client:
        assert client.delivery_policy == "spool"
    with new_client(new_settings(closed_address, tmp_path, delivery_policy="block"), errors) as client:
        assert client.delivery_policy == "block"
    assert not [error for error in errors if isinstance(error, SettingsError)]


def test_a_journal_that_cannot_be_written_is_reported_and_left_out(closed_address: str, tmp_path: Path) -> None:
    errors: list[Exception] = []
    with new_client(
        new_settings(closed_address, tmp_path, journal_path=tmp_path / "none" / "journal"), errors
    ) as client:
        client.create(user_id="u")
    (reported,) = [error for error in errors if isinstance(error, SettingsError)]
    assert "SESSIONARY_JOURNAL_PATH" in str(reported)


@pytest.mark.parametrize("policy", ["spool", "drop"])
@pytest.mark.parametrize(
    ("given", "variable"),
    [
        ({"security_protocol": "SASL_SSL", "sasl_mechanism": "NOPE"}, "SESSIONARY_SASL_MECHANISM"),
        ({"security_protocol": "SASL_SSL"}, "SESSIONARY_SASL_MECHANISM"),
        ({"security_protocol": "NOPE"}, "SESSIONARY_SECURITY_PROTOCOL"),
        ({"security_protocol": "SSL", "ssl_ca_location": "/no/such/file"}, "SESSIONARY_SSL_CA_LOCATION"),
        ({"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN"}, "SESSIONARY_SASL_USERNAME and"),
        ({"sasl_username": "\ud83d"}, "SESSIONARY_SASL_USERNAME"),
    ],
)
def test_what_librdkafka_cannot_use_is_one_error_that_names_the_variable(
    given: dict[str, str], variable: str, policy: str, tmp_path: Path
) -> None:
    with pytest.raises(SettingsError, match=f"^{variable}"):
        new_client(new_settings("127.0.0.1:1", tmp_path, delivery_policy=policy, **given), [])
    assert not list(tmp_path.rglob("*.*"))


def test_a_certificate_authority_without_a_certificate_is_named(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    settings = new_settings("127.0.0.1:1", tmp_path, security_protocol="SSL", ssl_ca_location=str(tmp_path / "ca.pem"))
    with pytest.raises(SettingsError, match="SESSIONARY_SSL_CA_LOCATION"):
        new_client(settings, [])
