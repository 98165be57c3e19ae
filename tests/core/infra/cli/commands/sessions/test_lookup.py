"""A session's live state, as the control API shows it."""

import pytest

from sessionary.infra.cli.commands.sessions.lookup import fetch_live_state
from tests.core.infra.cut_server import serve_cut_answers
from tests.core.infra.fake_control_api import serve_fake_api


def live_state(url: str) -> object:
    environ = {"SESSIONARY_CONTROL_URL": url, "SESSIONARY_API_TOKENS": '{"token": "acme"}'}
    return fetch_live_state(environ, "acme", "s1")


@pytest.mark.parametrize("end", ["", "/"])
def test_the_api_s_address_may_end_with_a_slash(end: str) -> None:
    with serve_fake_api() as api:
        api.answers = {"/v1/sessions/s1": (200, {"state": "Active"})}
        assert live_state(f"{api.url}{end}") == {"state": "Active"}


def test_an_answer_that_cannot_be_used_is_no_live_state() -> None:
    with serve_cut_answers(b'{"state": "Active"}', missing=9) as url:
        assert live_state(url) is None
    assert live_state("localhost:8600") is None
