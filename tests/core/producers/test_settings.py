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


def test_ids_are_of_version_4_unless_7_is_asked_for() -> None:
    assert ProducerSettings.from_env({}).session_id_version == 4
    assert ProducerSettings.from_env({"SESSIONARY_SESSION_ID_VERSION": "7"}).session_id_version == 7


def test_two_clusters_never_share_a_spool(tmp_path: Path) -> None:
    folders = {new_settings(servers, tmp_path).spool_folder for servers in ("a:1,b:2", "b:2, a:1", "c:3")}
    assert len(folders) == 2


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(("control_url", text) for text in ("processor:8600", "http://", "ftp://a", "http://a:b", "http://a:99999")),
        *(("control_url", text) for text in ("http://a b", "http://u:p@a", "http://a/?q", "http://é", "http://a:0")),
        *(("api_token", text) for text in ("a b", "a\nb", "é", "\ud83d")),
        *(("bootstrap_servers", text) for text in ("a:b", "a:99999", "a:0", "a:1,", "http://a:1", "a b")),
        ("disabled", "perhaps"),
    ],
)
def test_what_is_malformed_is_named_and_a_token_is_not_shown(name: str, text: str) -> None:
    with pytest.raises(SettingsError, match=f"^SESSIONARY_{name.upper()}: ") as raised:
        ProducerSettings.from_env({f"SESSIONARY_{name.upper()}": text})
    if name == "api_token" and text:
        assert text not in str(raised.value)


@pytest.mark.parametrize("name", ["control_url", "api_token", "spool_dir", "journal_path", "artifacts_url"])
def test_an_empty_text_as_an_argument_is_named(name: str) -> None:
    with pytest.raises(SettingsError, match=f"^SESSIONARY_{name.upper()}: "):
        ProducerSettings.from_env({}, **{name: ""})


def test_all_that_is_malformed_is_reported_at_once() -> None:
    with pytest.raises(SettingsError, match=r"SESSIONARY_CONTROL_URL: .*SESSIONARY_DELIVERY_POLICY: "):
        ProducerSettings.from_env({"SESSIONARY_CONTROL_URL": "x", "SESSIONARY_DELIVERY_POLICY": "often"})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(
            ("control_url", text)
            for text in ("http://127.0.0.1:8600", "https://a.example/sessionary/", "http://[::1]:1")
        ),
        *(("api_token", text) for text in ("abc.DEF-_~+/==", "!")),
        *(("bootstrap_servers", text) for text in ("a", "a:1, b:65535", "[::1]:9092", "SASL_SSL://a-b.c_d:1")),
    ],
)
def test_what_is_well_formed_is_taken_as_it_is(name: str, text: str) -> None:
    found = getattr(ProducerSettings.from_env({f"SESSIONARY_{name.upper()}": text}), name)
    assert (found.get_secret_value() if name == "api_token" else found) == text
