"""What a worker's settings accept and show."""

import json

import pytest

from sessionary.schemas.errors import SettingsError
from sessionary.stream_processors.access import Caller
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


def test_ticks_that_change_nothing_are_committed_once_a_minute() -> None:
    assert ProcessorSettings.from_env({}).tick_commit_interval_ms == 60_000
