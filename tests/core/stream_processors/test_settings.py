"""What a worker's settings accept and show."""

import pytest

from sessionary.schemas.errors import SettingsError
from sessionary.stream_processors.settings import ProcessorSettings


def test_tokens_come_as_json_and_never_show() -> None:
    settings = ProcessorSettings.from_env({"SESSIONARY_API_TOKENS": '{"secret": "acme"}'})
    assert settings.api_tokens == {"secret": "acme"}
    assert "secret" not in repr(settings)
    with pytest.raises(SettingsError) as caught:
        ProcessorSettings.from_env({"SESSIONARY_API_TOKENS": "secret"})
    assert "SESSIONARY_API_TOKENS" in str(caught.value)
    assert "secret" not in str(caught.value)
