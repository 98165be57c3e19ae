"""What names a session, and its live state as the control API shows it."""

from collections.abc import Iterator

import pytest

from docs.build.commands_page import leaf_commands
from sessionary.infra.cli.app import run
from sessionary.infra.cli.commands.sessions.lookup import checked_session_start, fetch_live_state
from sessionary.schemas.errors import Invalid
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


WHOLE = "183108ed-8784-4091-97dd-1ac993fda554"


@pytest.mark.parametrize("length", [1, 8, 9, 13, 14, 35, 36])
def test_a_session_id_or_its_beginning_names_a_session(length: int) -> None:
    expected = WHOLE[:length].removesuffix("-")
    assert checked_session_start(WHOLE[:length]) == checked_session_start(WHOLE[:length].upper()) == expected


def test_hyphens_may_be_left_out() -> None:
    assert checked_session_start(WHOLE.replace("-", "")) == WHOLE
    assert checked_session_start("183108ed87") == "183108ed-87"


@pytest.mark.parametrize(
    "text", ["", "nonsense", "-", "183108ed8-784", f"{WHOLE}0", f"{WHOLE}-", "1 8", "s1", "abc-", "dead-beef"]
)
def test_what_begins_no_session_id_is_refused(text: str) -> None:
    with pytest.raises(Invalid) as caught:
        checked_session_start(text)
    assert caught.value.reason == "invalid_value"
    assert f"{text!r} is no session id" in caught.value.detail


def commands_of_sessions() -> Iterator[list[str]]:
    """Yield a line of words for each command that takes a session's id: a wrong id, a good rest."""
    for name, command in leaf_commands().items():
        given = [parameter.name for parameter in command.params if parameter.param_type_name == "argument"]
        if "session" in given:
            yield [*name.split(), *("nonsense" if one == "session" else "k" for one in given)]


def test_each_command_says_first_that_a_word_is_no_session_id(capfd: pytest.CaptureFixture[str]) -> None:
    """Nothing is set: what a command needs besides is asked for later."""
    why = ["--reason", "x"]
    more = {"call resolve": ["--outcome", "failed", "--by", "ann"], "session move": ["--to", "shipping", *why]}
    more |= {f"session {verb}": why for verb in ("pause", "resume", "cancel")}
    more |= {"session claim": ["--for", "shipping", *why]}
    found = [*commands_of_sessions(), ["rejected", "list", "--session", "nonsense"]]
    reading = {f"session {verb}" for verb in ("show", "timeline", "follow", "conversation")}
    reading |= {"run show", "run resume", "rejected list", "question approve", "question deny"}
    assert {" ".join(words[:2]) for words in found} == reading | more.keys()
    for words in found:
        assert run([*words, *more.get(" ".join(words[:2]), [])]) == 5, words
        out, err = capfd.readouterr()
        assert (out, len(err.splitlines())) == ("", 1), words
        assert err.startswith("sessionary: 'nonsense' is no session id, nor the beginning of one"), words
