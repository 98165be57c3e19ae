"""What the commands' client makes of a control API's answers."""

from collections.abc import Iterator

import pytest
from pydantic import SecretStr

from sessionary.infra.control_api_client import ControlApiClient, UnknownPartition
from sessionary.infra.local.ports import free_port
from sessionary.infra.settings import OperatorSettings
from sessionary.schemas.errors import Invalid, SettingsError, Unavailable
from tests.core.infra.fake_control_api import AskedRequest, FakeControlApi, partition, serve_fake_api

LIST, RETRY = "/v1/partitions", "/v1/partitions/1/retry"


@pytest.fixture
def api() -> Iterator[FakeControlApi]:
    with serve_fake_api() as served:
        yield served


def client(url: str | None, token: str | None = "s3cret") -> ControlApiClient:
    secret = None if token is None else SecretStr(token)
    return ControlApiClient(OperatorSettings(control_url=url, operator_token=secret), 60.0)


def test_partitions_are_listed_and_retried_with_the_operator_s_token(api: FakeControlApi) -> None:
    api.answers = {LIST: (200, {"partitions": [partition(0)]}), RETRY: (200, partition(1))}
    assert client(f"{api.url}/").list_partitions() == [partition(0)]
    assert client(api.url).retry_partition(1) == partition(1)
    assert api.asked == [
        AskedRequest("GET", LIST, "Bearer s3cret", ""),
        AskedRequest("POST", RETRY, "Bearer s3cret", ""),
    ]


@pytest.mark.parametrize(
    ("status", "reason", "kind", "reported"),
    [
        (401, "unauthorized", SettingsError, "does not know this token: set SESSIONARY_OPERATOR_TOKEN"),
        (403, "forbidden", SettingsError, "why; set SESSIONARY_OPERATOR_TOKEN"),
        (404, "unknown_partition", UnknownPartition, "why"),
        (404, "not_found", Invalid, "has no such page: it is no processor, or one of an older release"),
        (409, "not_halted", Invalid, "why"),
        (503, "not_ready", Unavailable, "why"),
    ],
)
def test_a_problem_is_an_error_that_says_what_to_do(
    api: FakeControlApi, status: int, reason: str, kind: type[Exception], reported: str
) -> None:
    api.answer_problem(RETRY, status, reason, "why")
    with pytest.raises(kind) as caught:
        client(api.url).retry_partition(1)
    assert reported in str(caught.value)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("body", [[], "text", None])
def test_another_server_is_distinguished_from_a_processor(api: FakeControlApi, body: object) -> None:
    api.answers = {LIST: (200, body)}
    with pytest.raises(Invalid, match="is no control API: set SESSIONARY_CONTROL_URL"):
        client(api.url).list_partitions()
    api.answers = {}
    with pytest.raises(Invalid, match="has no such page"):
        client(api.url).list_partitions()


def test_a_repeated_request_goes_to_the_next_server(api: FakeControlApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one may not reach the owner of the session's partition."""
    monkeypatch.setattr("sessionary.infra.control_api_client._PAUSE_S", 0.0)
    monkeypatch.setattr("sessionary.schemas.http.control_servers._QUICK_S", -1.0)
    path = "/v1/sessions/s1/pause?tenant=acme"
    api.answer_problem(path, 503, "not_ready", "the owner does not answer")
    with serve_fake_api() as other:
        other.answers = {path: (200, {"state": "Paused"})}
        both = client(f"{api.url},{other.url}")
        assert both.act_on_session("s1", "acme", "pause", {}, "k1") == {"state": "Paused"}
    assert (len(api.asked), len(other.asked)) == (1, 1)


def test_what_is_not_set_or_cannot_be_sent_is_reported_before_anything_is_asked(api: FakeControlApi) -> None:
    for url, token, reported in (
        (None, "s3cret", "SESSIONARY_CONTROL_URL is not set"),
        (api.url, None, "no operator token is set: set SESSIONARY_OPERATOR_TOKEN"),
        (api.url, "s3cret\n1", "SESSIONARY_OPERATOR_TOKEN has characters that no token has"),
    ):
        with pytest.raises(SettingsError) as caught:
            client(url, token).list_partitions()
        assert reported in str(caught.value)
        assert "s3cret" not in str(caught.value)
    assert api.asked == []


@pytest.mark.parametrize("name", ["CONTROL_URL", "QUOTAS_URL"])
def test_a_wrong_url_among_several_is_named(name: str) -> None:
    with pytest.raises(SettingsError, match=f"SESSIONARY_{name}: .*'b:8600' is not the URL of a control API"):
        OperatorSettings.from_env({f"SESSIONARY_{name}": "http://a:8600,b:8600"})


def test_the_next_processor_is_asked_if_one_is_away_but_nothing_is_done_twice(api: FakeControlApi) -> None:
    away = f"http://127.0.0.1:{free_port()}"
    api.answers = {LIST: (200, {"partitions": []}), RETRY: (200, partition(1))}
    with serve_fake_api() as unready:
        for path in (LIST, RETRY):
            unready.answer_problem(path, 503, "not_ready", "why")
        urls = f"{away},{unready.url},{api.url}"
        assert client(urls).list_partitions() == []
        several = client(urls)
        with pytest.raises(Unavailable, match=f"the processor at {unready.url}: why"):
            several.retry_partition(1)
        assert [one.method for one in unready.asked] == ["GET", "POST"]
    assert several.retry_partition(1) == partition(1)
    assert [one.method for one in api.asked] == ["GET", "POST"]


def test_a_processor_that_is_away_is_unavailable() -> None:
    with pytest.raises(Unavailable, match=r"no processor answers at .*: start one, or set SESSIONARY_CONTROL_URL"):
        client(f"http://127.0.0.1:{free_port()}").list_partitions()
