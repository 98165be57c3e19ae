"""What names a session, and its live state as the control API shows it."""

import random
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import NamedTuple, cast

import pytest

from docs.build.commands_page import leaf_commands
from sessionary.infra.cli.app import run
from sessionary.infra.cli.commands.sessions.lookup import (
    RowTail,
    checked_session,
    fetch_live_state,
    find_session,
    is_whole_id,
    parse_since,
    session_start,
)
from sessionary.infra.cli.errors import NotFound
from sessionary.infra.clickhouse_client import ClickHouseClient, Row
from sessionary.infra.local.ports import free_port
from sessionary.schemas.errors import Invalid, SettingsError
from sessionary.schemas.ids import given_session_id
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


def test_the_next_server_shows_the_live_state_and_a_wrong_url_is_named() -> None:
    with serve_fake_api() as api:
        api.answers = {"/v1/sessions/s1": (200, {"state": "Active"})}
        assert live_state(f"http://127.0.0.1:{free_port()},{api.url}") == {"state": "Active"}
        with pytest.raises(SettingsError, match="SESSIONARY_CONTROL_URL: 'localhost:8600' is not"):
            live_state(f"{api.url},localhost:8600")


WHOLE = "183108ed-8784-4091-97dd-1ac993fda554"


@pytest.mark.parametrize("length", [1, 8, 9, 13, 14, 35, 36])
def test_a_session_id_or_its_beginning_names_a_session(length: int) -> None:
    expected = WHOLE[:length].removesuffix("-")
    assert session_start(WHOLE[:length]) == session_start(WHOLE[:length].upper()) == expected


def test_hyphens_may_be_left_out() -> None:
    assert session_start(WHOLE.replace("-", "")) == WHOLE
    assert session_start("183108ed87") == "183108ed-87"


@pytest.mark.parametrize("form", [WHOLE.upper(), WHOLE.replace("-", ""), f"urn:uuid:{WHOLE}", f"{{{WHOLE}}}"])
def test_each_form_of_a_uuid_is_a_whole_id(form: str) -> None:
    assert checked_session(form) == WHOLE
    assert is_whole_id(checked_session(form))


@pytest.mark.parametrize(
    "text", ["thread-42", "-", "183108ed8-784", f"{WHOLE}0", f"{WHOLE}-", "1 8", "s1", "abc-", "dead-beef", "x" * 36]
)
def test_a_text_is_taken_as_it_is_and_begins_no_session_id(text: str) -> None:
    assert checked_session(text) == text
    assert session_start(text) == ""
    assert not is_whole_id(text)


@pytest.mark.parametrize("text", ["", " ", "thread\n42", "x" * 257])
def test_what_cannot_be_an_id_is_refused(text: str) -> None:
    with pytest.raises(Invalid) as caught:
        checked_session(text)
    assert caught.value.reason == "invalid_value"


class OneTable:
    """A source that has these sessions; keeps what it was asked."""

    def __init__(self, *rows: Row) -> None:
        self.rows, self.asked = list(rows), dict[str, str]()

    def fetch_rows(self, _statement: str, **asked: str) -> list[Row]:
        self.asked = asked
        return self.rows


def row_of(session_id: str, external_id: str | None, tenant_id: str = "acme") -> Row:
    return {"tenant_id": tenant_id, "session_id": session_id, "external_id": external_id}


def find_in(source: OneTable, session: str, tenant: str | None = None) -> str:
    return str(find_session(cast(ClickHouseClient, source), session, tenant)["session_id"])


def test_of_the_sessions_of_a_text_the_newest_is_found() -> None:
    source = OneTable(row_of("s2", "thread-42"), row_of("s1", "thread-42"))  # the newest first
    assert find_in(source, "thread-42") == "s2"
    assert (source.asked["text"], source.asked["start"], source.asked["first"]) == ("thread-42", "", "")
    find_in(source, "thread-42", "acme")  # once the text has expired, its UUID still tells
    assert source.asked["first"] == given_session_id("acme", "thread-42").session_id


def test_a_text_goes_before_the_beginning_of_another_sessions_id() -> None:
    source = OneTable(row_of("s1", "abc"), row_of("abcdef01-0000-4000-8000-000000000000", None))
    assert find_in(source, "abc") == "s1"
    assert source.asked["start"] == "abc"


def test_a_text_of_two_tenants_asks_which() -> None:
    source = OneTable(row_of("s1", "thread-42"), row_of("s2", "thread-42", "globex"))
    with pytest.raises(Invalid, match=r"is the text of more than one session: .*acme:s1.*give --tenant"):
        find_in(source, "thread-42")


def test_a_uuid_is_the_session_of_that_id_whatever_another_one_claims() -> None:
    source = OneTable(row_of("s1", WHOLE, "globex"), row_of(WHOLE, None))  # only a forged event claims so
    with pytest.raises(Invalid, match=rf"acme:{WHOLE}"):
        find_in(source, WHOLE)
    assert source.asked["text"] == ""
    assert find_in(OneTable(row_of(WHOLE, None)), WHOLE) == WHOLE


def test_a_beginning_of_two_ids_asks_for_more() -> None:
    source = OneTable(row_of("ab1", None), row_of("ab2", None))
    with pytest.raises(Invalid, match=r"begins more than one session: acme:ab1, acme:ab2 .*more of its id"):
        find_in(source, "ab")


def test_an_unknown_text_is_not_found() -> None:
    with pytest.raises(NotFound, match="no session 'thread-43' of tenant acme"):
        find_in(OneTable(), "thread-43", "acme")


def commands_of_sessions() -> Iterator[list[str]]:
    """Yield a line of words for each command that takes a session's id: a wrong id, a good rest."""
    for name, command in leaf_commands().items():
        given = [parameter.name for parameter in command.params if parameter.param_type_name == "argument"]
        if "session" in given:
            yield [*name.split(), *("" if one == "session" else "k" for one in given)]


def test_each_command_says_first_that_a_word_cannot_be_a_session_id(capfd: pytest.CaptureFixture[str]) -> None:
    """Nothing is set: what a command needs besides is asked for later."""
    why = ["--reason", "x"]
    more = {"call resolve": ["--outcome", "failed", "--by", "ann"], "session move": ["--to", "shipping", *why]}
    more |= {f"session {verb}": why for verb in ("pause", "resume", "cancel", "ask-again")}
    more |= {"session claim": ["--for", "shipping", *why]}
    found = [*commands_of_sessions(), ["rejected", "list", "--session", ""]]
    reading = {f"session {verb}" for verb in ("show", "timeline", "follow", "conversation")}
    reading |= {f"session {verb}" for verb in ("at", "diff", "snapshots", "simulate", "why")}
    reading |= {"run show", "run resume", "rejected list", "question approve", "question deny"}
    assert {" ".join(words[:2]) for words in found} == reading | more.keys()
    for words in found:
        assert run([*words, *more.get(" ".join(words[:2]), [])]) == 5, words
        out, err = capfd.readouterr()
        assert (out, len(err.splitlines())) == ("", 1), words
        assert err.startswith("sessionary: session id '' is empty"), words


_NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "time"),
    [
        (None, "1970-01-01 00:00:00"),
        ("90s", "2026-03-01 11:58:30.000000"),
        ("15m", "2026-03-01 11:45:00.000000"),
        ("2h", "2026-03-01 10:00:00.000000"),
        ("7d", "2026-02-22 12:00:00.000000"),
        ("2026-02-03T04:05", "2026-02-03 04:05:00.000000"),
        ("2026-02-03", "2026-02-03 00:00:00.000000"),
        ("2026-02-03T04:05:06.789+02:00", "2026-02-03 02:05:06.789000"),
        ("1900-01-01", "1970-01-01 00:00:00.000000"),
        ("9999-12-31T23:59:59+14:00", "2106-01-01 00:00:00.000000"),
    ],
)
def test_a_time_or_how_long_ago(text: str | None, time: str) -> None:
    assert parse_since(text, _NOW) == time


@pytest.mark.parametrize("text", ["", "yesterday", "5x", "-5m", "999999999d", "0001-01-01T00:00+14:00"])
def test_another_text_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(Invalid, match="90s, 15m, 2h or 7d"):
        parse_since(text, _NOW)


SEEN_AFTER_MAX = 60  # an insert takes at most so long


class Landing(NamedTuple):
    """A row of a table: when its insert began, and when it can be seen."""

    number: int
    landed: int
    seen: int


class FakeTable:
    """A table whose rows can be seen some time after they landed, as the clock goes on."""

    def __init__(self, landings: list[Landing]) -> None:
        self._landings, self.now = landings, 0

    def fetch_landed(self, landed: str) -> list[Row]:
        since = int(landed) if landed.lstrip("-").isdigit() else 0
        return [{"n": row.number} for row in self._landings if row.landed >= since and row.seen <= self.now]

    def fetch_horizon(self) -> str:
        return str(self.now - SEEN_AFTER_MAX)

    def fetch_list(self) -> list[Row]:
        """Return the two newest rows."""
        return self.fetch_landed("0")[::-1][:2]


def follow_table(table: FakeTable, end: int, step: int) -> list[int]:
    """Return the numbers that are reported from the 100th second on."""
    table.now = 100
    tail = RowTail(table.fetch_landed, table.fetch_horizon, lambda row: row["n"])
    reported = [row["n"] for row in tail.begin_after(table.fetch_list)]
    while table.now < end:
        table.now += step
        reported += [row["n"] for row in tail.fetch_unseen()]
    return reported


@pytest.mark.parametrize("seed", range(20))
def test_no_row_is_missed_and_none_reported_twice(seed: int) -> None:
    source = random.Random(seed)
    landings = []
    for number in range(500):
        landed = source.randrange(0, 400)
        landings.append(Landing(number, landed, landed + source.choice((0, 1, 5, SEEN_AFTER_MAX))))
    landings.sort(key=lambda row: row.landed)
    table = FakeTable(landings)
    reported = follow_table(table, 500, source.randrange(1, 9))
    later = {row.number for row in landings if row.seen > 100}
    assert len(reported) == len(set(reported))
    assert later <= set(reported)
    assert len(set(reported) - later) == 2, "of the former rows only those of the list"


def test_a_row_that_lands_while_the_list_is_read_is_reported() -> None:
    table = FakeTable([Landing(1, 90, 90), Landing(2, 91, 91), Landing(3, 100, 101)])
    table.now = 100
    tail = RowTail(table.fetch_landed, table.fetch_horizon, lambda row: row["n"])

    def read_slowly() -> list[Row]:
        found = table.fetch_list()
        table.now = 101
        return found

    assert [row["n"] for row in tail.begin_after(read_slowly)] == [2, 1]
    assert [row["n"] for row in tail.fetch_unseen()] == [3]
    assert tail.fetch_unseen() == []
