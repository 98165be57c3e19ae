"""The client's connections to the control API: how they are made, and when they are closed."""

from pathlib import Path

import pytest

from sessionary.producers import ProducerSettings, SessionClient, SettingsError
from sessionary.producers.control.http_control import HttpControl
from sessionary.producers.testing import InMemoryTransport, memory_ports
from sessionary.schemas.http.kept_connections import Request
from tests.core.producers.kafka_clients import new_client, new_settings
from tests.support.raw_server import answer_all, serving

WAIT_S = 60.0
ASK = Request("/v1/x?n=1", {"Accept": "application/json"})


@pytest.mark.parametrize("proxy", ["http://me:secret@proxy:port", "http://me:secret@proxy:99999", "http://[me:secret"])
def test_a_malformed_proxy_is_named_when_a_client_is_made(
    proxy: str, closed_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", proxy)
    monkeypatch.setenv("no_proxy", "")
    settings = new_settings(closed_address, tmp_path, control_url="http://control.invalid:8600")
    with pytest.raises(SettingsError, match=r"^http_proxy: ") as raised:
        new_client(settings, [])
    assert "secret" not in str(raised.value)
    assert not list(tmp_path.iterdir())
    monkeypatch.setenv("no_proxy", ".invalid")
    new_client(settings, []).close(0)


def test_the_client_s_end_closes_connections_that_wait_for_the_next_question() -> None:
    with serving(answer_all) as server:
        control = HttpControl(ProducerSettings.from_env({"SESSIONARY_CONTROL_URL": server.url}))
        memory = InMemoryTransport()
        ports = memory_ports(memory)._replace(close_idle=control.close_idle)
        client = SessionClient(
            tenant_id="acme", service_id="s", agent_id="a", settings=ProducerSettings.from_env({}), ports=ports
        )
        assert control._servers is not None
        control._servers.send(ASK, WAIT_S)
        (idle,) = control._servers._servers[0]._idle
        kept = idle.connection.sock
        client.close()
        assert kept.fileno() == -1
        assert control._servers.send(ASK, WAIT_S).body == b"ok"
        assert server.connections == 2
        control.close_idle()
