"""The settings of the Faust app."""

import asyncio
from pathlib import Path

import pytest
from faust.tables.recovery import RebalanceAgain, Recovery

from sessionary.schemas.errors import SettingsError
from sessionary.stream_processors.faust_app import PatientTables, make_faust_app, serving_context
from sessionary.stream_processors.settings import ProcessorSettings
from tests.support.certificates import CertificateAuthority


@pytest.mark.parametrize(("session_timeout_ms", "answer_s"), [(6_000, 15.0), (30_000, 35.0)])
def test_a_silent_coordinator_is_given_up_soon_but_not_during_a_rebalance(
    session_timeout_ms: int, answer_s: float, tmp_path: Path
) -> None:
    app = make_faust_app(ProcessorSettings(session_timeout_ms=session_timeout_ms), str(tmp_path))
    assert app.conf.broker_request_timeout == answer_s
    assert app.conf.broker_request_timeout > app.conf.broker_rebalance_timeout


@pytest.mark.parametrize(("session_timeout_ms", "heartbeat_s"), [(1_000, 0.333), (6_000, 0.5), (30_000, 0.5)])
def test_a_worker_learns_within_half_a_second_that_its_group_rebalances(
    session_timeout_ms: int, heartbeat_s: float, tmp_path: Path
) -> None:
    """It is reported in the answer to a heartbeat."""
    app = make_faust_app(ProcessorSettings(session_timeout_ms=session_timeout_ms), str(tmp_path))
    assert app.conf.broker_heartbeat_interval == heartbeat_s


def make_recovery(folder: Path) -> Recovery:
    tables = make_faust_app(ProcessorSettings(), str(folder)).tables
    assert isinstance(tables, PatientTables)
    return tables.recovery


def test_a_seek_that_takes_longer_than_a_request_does_not_end_the_recovery(tmp_path: Path) -> None:
    async def story() -> None:
        recovery = make_recovery(tmp_path)
        seek = asyncio.ensure_future(asyncio.sleep(0.05, "sought"))
        await recovery._wait(seek, timeout=0.001)
        assert seek.result() == "sought"

    asyncio.run(story())


def test_a_seek_that_waits_gives_way_to_the_next_assignment(tmp_path: Path) -> None:
    async def story() -> None:
        recovery = make_recovery(tmp_path)
        recovery.signal_recovery_start.set()
        with pytest.raises(RebalanceAgain):
            await recovery._wait(asyncio.sleep(3_600), timeout=0.001)

    asyncio.run(story())


def test_without_a_certificate_the_api_is_plain_http() -> None:
    assert serving_context(ProcessorSettings()) is None
    assert ProcessorSettings().api_url == "http://127.0.0.1:8600"


def test_a_certificate_makes_the_api_https(tmp_path: Path) -> None:
    made = CertificateAuthority(tmp_path).issue("worker")
    for settings in (
        ProcessorSettings(api_tls_certificate=made.certificate, api_tls_key=made.key),
        ProcessorSettings(api_tls_certificate=made.both),
    ):
        assert settings.api_url == "https://127.0.0.1:8600"
        assert make_faust_app(settings, str(tmp_path)).conf.web_ssl_context is not None


def test_what_cannot_be_used_is_named_by_its_variables(tmp_path: Path) -> None:
    locked = CertificateAuthority(tmp_path).issue("locked", password="s3cret")
    with pytest.raises(SettingsError, match=r"SESSIONARY_API_TLS_KEY: .*encrypted"):
        serving_context(ProcessorSettings(api_tls_certificate=locked.certificate, api_tls_key=locked.key))
    with pytest.raises(SettingsError, match=r"SESSIONARY_API_TLS_CERTIFICATE, .*: No such file"):
        serving_context(ProcessorSettings(api_tls_certificate=tmp_path / "nowhere.pem"))
    with pytest.raises(SettingsError, match=r"^SESSIONARY_API_TLS_KEY: SESSIONARY_API_TLS_CERTIFICATE is not set"):
        ProcessorSettings.from_env({"SESSIONARY_API_TLS_KEY": str(locked.key)})
