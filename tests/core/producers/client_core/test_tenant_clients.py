"""Clients of several tenants over one producer."""

import asyncio
import gc
import os
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from pydantic import SecretStr

from sessionary.producers import (
    AsyncSessionClient,
    CleanupAction,
    CleanupHandler,
    CleanupRequest,
    ClientClosed,
    Invalid,
    Ports,
    ProducerError,
    ProducerSettings,
    Rejected,
    SessionClient,
    SettingsError,
    Unavailable,
)
from sessionary.producers.kafka_ports import kafka_ports
from sessionary.producers.ports import OnCleanupRequest
from sessionary.producers.testing import InMemoryTransport, memory_client, memory_ports
from sessionary.schemas.events import SessionCreated
from sessionary.schemas.ids import new_session_id


@pytest.fixture
def acme() -> Iterator[tuple[SessionClient, InMemoryTransport]]:
    settings = ProducerSettings.from_env({}, heartbeat_interval_s=1.0, api_token="of-acme")
    client, memory = memory_client(tenant_id="acme", settings=settings)
    with client:
        yield client, memory


Acme = tuple[SessionClient, InMemoryTransport]


def tenants_of(memory: InMemoryTransport) -> list[str]:
    return [event.envelope.tenant_id for event in memory.events()]


def test_each_client_sends_for_its_tenant_through_one_producer(acme: Acme) -> None:
    client, memory = acme
    globex = client.for_tenant("globex")
    with globex.session(user_id="u") as theirs, client.session(user_id="u") as ours:
        begin = len(memory.events())
        theirs.info("1")
        ours.info("2")
        assert theirs.sync().state == ours.sync().state == "Active"
        assert tenants_of(memory)[begin:] == ["globex", "acme"]
    assert globex.producer_id == client.producer_id
    assert [record.key.decode().split(":")[0] for record in memory.records()] == tenants_of(memory)
    assert globex.counters.sent == client.counters.sent == len(memory.records())


def test_closing_a_tenants_client_leaves_the_others_open(acme: Acme) -> None:
    client, memory = acme
    with client.for_tenant("globex") as globex, client.for_tenant("initech") as initech:
        theirs, ours, others = (each.session(user_id="u") for each in (globex, client, initech))
        globex.close()
        globex.close()
        with pytest.raises(ClientClosed):
            theirs.info("x")
        with pytest.raises(ClientClosed):
            globex.session(user_id="u")
        seen = len(memory.heartbeats())
        memory.advance(45)
        late = {event.envelope.tenant_id for event in memory.heartbeats()[seen:]}
        assert late == {"acme", "initech"}
        ours.info("x")
        others.info("x")


def test_closing_the_first_client_closes_all(acme: Acme) -> None:
    client, _ = acme
    globex = client.for_tenant("globex")
    further = globex.for_tenant("initech")
    session = further.session(user_id="u")
    client.close()
    for closed in (globex, further):
        with pytest.raises(ClientClosed):
            closed.session(user_id="u")
    with pytest.raises(ClientClosed):
        session.info("x")
    with pytest.raises(ClientClosed):
        client.for_tenant("hooli")


class Cleanups:
    """A clean-up consumer that does something when it is closed."""

    def __init__(self, when_closed: Callable[[float], object]) -> None:
        self._when_closed = when_closed

    def start(self, on_request: OnCleanupRequest) -> None:
        return None

    def close(self, timeout_s: float) -> None:
        self._when_closed(timeout_s)


def leave_without_verdict(client: SessionClient, memory: InMemoryTransport) -> str:
    """Leave a session whose resume has no verdict yet; return its id."""
    with client.session(user_id="u") as session:
        session.pause()
        memory.silence_control(silent=True)
        with pytest.raises(Unavailable):
            session.resume()
    return session.session_id


@pytest.mark.parametrize("closes", ["the first client", "the tenant's"])
def test_closing_waits_for_the_verdict_on_a_tenants_session(closes: str) -> None:
    client, memory = memory_client(tenant_id="acme")
    globex = client.for_tenant("globex")
    session_id = leave_without_verdict(globex, memory)
    closing = client if closes == "the first client" else globex
    speaks = Cleanups(lambda _: memory.silence_control(silent=False))
    closing.core.ports = closing.core.ports._replace(cleanups=speaks)
    closing.close(120.0)
    assert memory.view_session(session_id).state == "Terminated"
    client.close()


def test_all_clean_ups_are_asked_to_stop_before_one_is_waited_for(acme: Acme) -> None:
    client, _ = acme
    reported: list[tuple[str, bool]] = []

    def note_close(name: str, timeout_s: float) -> None:
        reported.append((name, timeout_s > 0))

    clients = {"acme": client, "globex": client.for_tenant("globex"), "initech": client.for_tenant("initech")}
    for name, each in clients.items():
        each.core.ports = each.core.ports._replace(cleanups=Cleanups(partial(note_close, name)))
    client.close(600.0)
    assert {name for name, waits in reported[:3] if not waits} == set(clients)
    assert {name for name, waits in reported[3:] if waits} == set(clients)


def test_the_tenants_share_one_count_of_rejections_and_errors(acme: Acme) -> None:
    client, memory = acme
    globex = client.for_tenant("globex")
    for each in (client, globex):
        with each.session(user_id="u") as session:
            session.pause()
            memory.reject_next("stale_epoch")
            with pytest.raises(Rejected):
                session.resume()
        each.core._count_error("by_hand")
    assert client.counters.rejected == globex.counters.rejected == 2
    assert client.counters.errors == globex.counters.errors == {"by_hand": 2}


def test_a_tenant_that_is_added_while_the_client_closes_is_refused(acme: Acme) -> None:
    client, _ = acme
    rejected: list[Exception] = []
    made: list[SessionClient] = []

    def add_tenant(_: float) -> None:
        try:
            made.append(client.for_tenant("late"))
        except ClientClosed as error:
            rejected.append(error)

    client.core.ports = client.core.ports._replace(cleanups=Cleanups(add_tenant))
    client.close(1.0)
    assert made == []
    assert rejected


def request_of(tenant_id: str, session_id: str) -> CleanupRequest:
    return CleanupRequest(
        cleanup_id=f"cleanup-{tenant_id}",
        tenant_id=tenant_id,
        session_id=session_id,
        service_id="service",
        epoch=1,
        actions=("close_connections",),
        reason_code="completed",
        reason="",
        requested_at=0,
    )


def test_each_tenant_has_a_clean_up_handler_of_its_own(acme: Acme) -> None:
    client, memory = acme
    handled: list[tuple[str, str]] = []

    def handler_of(name: str) -> CleanupHandler:
        def handle(request: CleanupRequest) -> list[CleanupAction] | None:
            handled.append((name, request.tenant_id))
            return None

        return handle

    globex = client.for_tenant("globex")
    client.on_cleanup(handler_of("acme"))
    globex.on_cleanup(handler_of("globex"))
    for tenant_id in ("acme", "globex"):
        memory.request_cleanup(request_of(tenant_id, new_session_id()))
    assert handled == [("acme", "acme"), ("globex", "globex")]
    answers = [event for event in memory.events() if event.envelope.event_type == "resources_released"]
    assert [event.envelope.tenant_id for event in answers] == ["acme", "globex"]


def test_a_tenants_client_never_uses_another_tenants_token(acme: Acme) -> None:
    client, _ = acme
    assert client.for_tenant("globex").core.settings.api_token is None
    token = client.for_tenant("globex", api_token="of-globex").core.settings.api_token
    assert token is not None
    assert token.get_secret_value() == "of-globex"
    assert client.core.settings.api_token == SecretStr("of-acme")


@pytest.mark.parametrize("token", ["", "a b", "a\nb", "é", "\ud83d"])
def test_a_malformed_token_makes_no_client_and_is_not_shown(acme: Acme, token: str) -> None:
    client, _ = acme
    with pytest.raises(SettingsError, match=r"^SESSIONARY_API_TOKEN: ") as raised:
        client.for_tenant("globex", api_token=token)
    assert not token or token not in str(raised.value)
    assert client.core._list_tenants() == []


def test_ports_of_kafka_share_the_transport_only(closed_address: str) -> None:
    settings = ProducerSettings.from_env({}, bootstrap_servers=closed_address, delivery_policy="drop")
    ports = kafka_ports(settings, "acme", "billing", "p", lambda error: None)
    try:
        assert ports.tenant_ports is not None
        globex = ports.tenant_ports("globex", settings)
        assert globex.transport is ports.transport
        assert globex.control is not ports.control
        assert globex.cleanups is not ports.cleanups
    finally:
        ports.transport.close(0)


def test_ports_of_one_tenant_and_bad_names_are_refused(acme: Acme) -> None:
    client, memory = acme
    with pytest.raises(Invalid, match="tenant"):
        client.for_tenant("no spaces")
    ports = memory_ports(memory)
    alone = SessionClient(
        tenant_id="acme",
        service_id="s",
        agent_id="a",
        settings=ProducerSettings.from_env({}),
        ports=Ports(ports.transport, ports.control, ports.cleanups),
    )
    with pytest.raises(ProducerError, match="one tenant only"):
        alone.for_tenant("globex")


def test_a_parent_may_be_a_session_of_the_same_tenant(acme: Acme) -> None:
    client, memory = acme
    with client.session(user_id="u") as parent:
        client.session(user_id="u", parent=parent)
        (child,) = (
            event.payload.parent_session_id
            for event in memory.events()
            if isinstance(event.payload, SessionCreated) and event.envelope.session_id != parent.session_id
        )
        assert child == parent.session_id
        with pytest.raises(Invalid, match="tenant acme"):
            client.for_tenant("globex").session(user_id="u", parent=parent)


def test_the_same_for_asyncio() -> None:
    async def main() -> InMemoryTransport:
        sync_client, memory = memory_client(tenant_id="acme")
        async with AsyncSessionClient.wrap(sync_client) as client:
            async with client.for_tenant("globex") as globex, globex.session(user_id="u") as session:
                await session.info("x")
                async with globex.session(user_id="u", parent=session):
                    pass
            async with client.session(user_id="u") as ours:
                child = await client.create(user_id="u", parent=ours.sync_session)
                await child.lifecycle.fail_start("invalid_config")
        return memory

    memory = asyncio.run(main())
    assert set(tenants_of(memory)) == {"acme", "globex"}


def test_a_dropped_client_of_a_tenant_is_freed(acme: Acme) -> None:
    client, _ = acme
    gone = weakref.ref(client.for_tenant("globex"))
    gc.collect()
    assert gone() is None


# A program with its own interpreter: from Python 3.12 on a fork beside threads is a warning.
_FORKED = """
import os, sys
from pathlib import Path
from sessionary.producers import ClientClosed, ProducerSettings, SessionClient
settings = ProducerSettings.from_env(
    {}, bootstrap_servers="127.0.0.1:1", spool_dir=Path(sys.argv[1]), close_timeout_s=0.1
)
client = SessionClient(tenant_id="acme", service_id="s", agent_id="a", settings=settings, on_error=lambda error: None)
globex, closed = client.for_tenant("globex"), client.for_tenant("initech")
closed.close()
before = globex.session(user_id="u")
dropped = client.for_tenant("dropped").session(user_id="u")
parents, locked = client.producer_id, client.core.counts_lock
child = os.fork()
if child == 0:
    assert globex.producer_id == client.producer_id != parents
    for session in (before, dropped):
        try:
            session.info("x")
        except ClientClosed as error:
            assert "before the fork" in str(error), error
        else:
            os._exit(2)
    globex.session(user_id="u").info("x")
    globex.core._count_error("by_hand")
    assert client.counters.errors["by_hand"] == globex.counters.errors["by_hand"] == 1
    assert globex.core.counts_lock is client.core.counts_lock is not locked
    assert globex.producer_id == client.producer_id != parents
    assert client.counters.sent == globex.counters.sent == 5, client.counters
    client.session(user_id="u")
    assert client.counters.sent == 9
    try:
        closed.session(user_id="u")
    except ClientClosed:
        os._exit(0)
    os._exit(3)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
before.info("x")
assert globex.producer_id == parents
client.close()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_tenants_client_works_on_in_a_forked_child(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", _FORKED, str(tmp_path)], check=True, timeout=300)


def test_a_disabled_client_serves_tenants_too() -> None:
    settings = ProducerSettings.from_env({}, disabled=True)
    client = SessionClient(tenant_id="acme", service_id="s", agent_id="a", settings=settings)
    with client, client.for_tenant("globex") as globex, globex.session(user_id="u") as session:
        assert session.sync().state == "Active"


# A child that closes the client without using it: the tenants' clients are closed too.
_CLOSED = """
import os, sys
from pathlib import Path
from sessionary.producers import ClientClosed, ProducerSettings, SessionClient
settings = ProducerSettings.from_env(
    {}, bootstrap_servers="127.0.0.1:1", spool_dir=Path(sys.argv[1]), close_timeout_s=0.1
)
client = SessionClient(tenant_id="acme", service_id="s", agent_id="a", settings=settings, on_error=lambda error: None)
globex = client.for_tenant("globex")
globex.session(user_id="u")
child = os.fork()
if child == 0:
    client.close()
    rejected = 0
    for use in (
        lambda: globex.session(user_id="u"), lambda: globex.for_tenant("x"), lambda: globex.on_cleanup(lambda _: None)
    ):
        try:
            use()
        except ClientClosed:
            rejected += 1
    assert rejected == 3, rejected
    assert globex.counters.sent == client.counters.sent == globex.flush(0.1) == 0
    globex.close()
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
client.close()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_that_closes_the_client_unused_closes_the_tenants_clients_too(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", _CLOSED, str(tmp_path)], check=True, timeout=300)
