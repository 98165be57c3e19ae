"""What is on loopback goes through no proxy, and an error of a proxied call names the proxy."""

from collections.abc import Callable
from contextlib import suppress

import pytest

from sessionary.infra.clickhouse_client import ClickHouseClient
from sessionary.infra.control_api_client import ControlApiClient
from sessionary.infra.local.ports import free_port
from sessionary.infra.settings import OperatorSettings
from sessionary.infra.stack import api_ready
from sessionary.producers.control.http_control import HttpControl
from sessionary.producers.settings import ProducerSettings
from sessionary.schemas.errors import Unavailable
from sessionary.schemas.http.proxies import is_loopback
from sessionary.schemas.settings import ClickHouseSettings
from sessionary.sinks.clickhouse.connection import connect
from tests.support.raw_server import answer_all, serving


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST.", "a.localhost", "127.0.0.1", "127.9.9.9", "::1", "[::1]", "::ffff:127.0.0.1"]
)
def test_loopback_is_known_by_name_and_address(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["", "localhost.example", "128.0.0.1", "10.0.0.1", "::2", "my-localhost", "host"])
def test_other_hosts_are_not_loopback(host: str) -> None:
    assert not is_loopback(host)


@pytest.fixture
def behind(monkeypatch: pytest.MonkeyPatch) -> str:
    """Let all of HTTP go through a proxy that is away; return its address."""
    closed_address = f"127.0.0.1:{free_port()}"
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://me:s3cret@{closed_address}")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    return closed_address


def _clickhouse(url: str) -> ClickHouseClient:
    return ClickHouseClient(ClickHouseSettings(clickhouse_url=url))


def _ask_control(url: str) -> None:
    HttpControl(ProducerSettings.from_env({}, control_url=url), "acme").fetch_session("s", None, 5.0)


def _ask_operator(url: str) -> None:
    ControlApiClient(OperatorSettings.from_env({}, control_url=url, operator_token="t")).list_partitions()


_USERS: dict[str, Callable[[str], object]] = {
    "client": _ask_control,
    "operator": _ask_operator,
    "clickhouse": lambda url: _clickhouse(url).server_version(),
    "sinks": lambda url: connect(ClickHouseSettings(clickhouse_url=url), 5),
    "probe": api_ready,
}


@pytest.mark.parametrize("user", _USERS)
@pytest.mark.usefixtures("behind")
def test_no_user_of_http_asks_a_proxy_for_loopback(user: str) -> None:
    with serving(answer_all) as server:
        with suppress(Exception):  # what the server says is no answer; that it was asked counts
            _USERS[user](server.url)
        assert server.asked
        assert not server.asked[0].partition(b" ")[2].startswith(b"http://")


@pytest.mark.parametrize("user", sorted(set(_USERS) - {"probe"}))
def test_an_error_of_a_call_through_a_proxy_names_it_without_its_password(user: str, behind: str) -> None:
    with pytest.raises(Exception, match=rf"through the proxy http://{behind} of http_proxy") as raised:
        _USERS[user]("http://service.invalid:8600")
    assert "s3cret" not in str(raised.value)
    assert isinstance(raised.value, Unavailable)
