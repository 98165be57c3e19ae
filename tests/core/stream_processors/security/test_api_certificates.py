"""TLS of the control API's server."""

from pathlib import Path

import pytest

from sessionary.schemas.errors import SettingsError
from sessionary.stream_processors.faust_app import make_faust_app
from sessionary.stream_processors.security.api_certificates import serving_context
from sessionary.stream_processors.settings import ProcessorSettings
from tests.support.certificates import CertificateAuthority


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
