"""Clients whose ports are in memory."""

from pathlib import Path

from sessionary.producers.artifacts.library import ArtifactLibrary
from sessionary.producers.client import SessionClient
from sessionary.producers.ports import OnError, Ports
from sessionary.producers.process.guards import log_error
from sessionary.producers.run_ports import Waits
from sessionary.producers.settings import ProducerSettings
from sessionary.producers.testing.judged_event import MemoryQuota
from sessionary.producers.testing.memory import InMemoryTransport, MemoryRequests
from sessionary.producers.testing.memory_runs import MemoryFollows, MemoryRecords, MemoryRuns, MemoryTasks
from sessionary.producers.verdicts.notifications import OnFenced, OnPaused, OnRejected, OnResumed, OnTimedOut
from sessionary.schemas.errors import Invalid
from sessionary.schemas.records import CleanupRequest, MigrationRequest


def memory_ports(memory: InMemoryTransport, tenant_id: str | None = None, service_id: str | None = None) -> Ports:
    """Return the argument `ports` of one `SessionClient` or `AsyncSessionClient`.

    The client's heartbeats follow the memory's clock, and its callbacks are called when the clock
    moves.

    Args:
        memory: The destination of the client's events; several clients may share it.
        tenant_id: Whose clean-ups and migrations the client is asked for; default: all tenants'.
        service_id: Whose clean-ups and migrations the client is asked for; default: all services'.
    """
    cleanups, migrations = _new_readers(memory, tenant_id, service_id, first=False)
    heartbeats = memory.core.new_heartbeats()
    follows = MemoryFollows(memory)

    def pause(seconds: float) -> None:
        memory.operator.answer_open()
        memory.pause(seconds)

    runs, waits = MemoryRuns(memory), Waits(lambda: memory.now_ms / 1_000, pause, lambda: 0.5)

    def tenant_ports(tenant: str, settings: ProducerSettings) -> Ports:
        cleanups, migrations = _new_readers(memory, tenant, service_id, first=True)
        polls, poll_timer = memory, memory.core.polls
        ports = Ports(memory, memory, cleanups, polls=polls, poll_timer=poll_timer, runs=runs)
        ports = ports._replace(waits=waits, follows=follows, migrations=migrations, tasks=MemoryTasks(memory, tenant))
        return ports._replace(records=lambda: MemoryRecords(memory))

    return Ports(
        memory,
        memory,
        cleanups,
        tenant_ports=tenant_ports,
        heartbeats=heartbeats,
        polls=memory,
        poll_timer=memory.core.polls,
        tasks=MemoryTasks(memory, tenant_id),
        runs=runs,
        waits=waits,
        follows=follows,
        migrations=migrations,
        records=lambda: MemoryRecords(memory),
    )


def _new_readers(
    memory: InMemoryTransport, tenant_id: str | None, service_id: str | None, *, first: bool
) -> tuple[MemoryRequests, MemoryRequests]:
    """Return the readers that pass a client its clean-ups and its migrations."""
    cleanups, migrations = (MemoryRequests(kind, tenant_id, service_id) for kind in (CleanupRequest, MigrationRequest))
    for reader in (cleanups, migrations):
        memory.core.deliveries.add_reader(reader, first=first)
    return cleanups, migrations


def memory_client(
    tenant_id: str = "acme",
    service_id: str = "service",
    agent_id: str = "agent",
    settings: ProducerSettings | None = None,
    *,
    memory: InMemoryTransport | None = None,
    quota: MemoryQuota | None = None,
    on_error: OnError = log_error,
    on_rejected: OnRejected | None = None,
    on_timed_out: OnTimedOut | None = None,
    on_fenced: OnFenced | None = None,
    on_paused: OnPaused | None = None,
    on_resumed: OnResumed | None = None,
    artifacts: ArtifactLibrary | Path | str | None = None,
) -> tuple[SessionClient, InMemoryTransport]:
    """Return a client that works in memory, and the memory, which judges its events.

    Reads no environment variables. Needs no real time: `memory.advance` moves the clock.

    Args:
        tenant_id: The client's tenant.
        service_id: The client's service.
        agent_id: The client's agent.
        settings: Default: the defaults of `ProducerSettings`.
        memory: Memory of another client, to share its sessions; default: a new one.
        quota: The quota of each tenant of a new memory; default: runs ask for none. The client then
            waits.
        on_error: As in `SessionClient`, and so are the next three. `memory.advance` calls them.
        on_rejected: Called with each event that was rejected; default: `on_error`.
        on_timed_out: Called if a clock of a session has fired; default: `on_error`.
        on_fenced: Called if another client took a session over; default: `on_error`.
        on_paused: Called if others paused a session (`memory.operator`); default: `on_error`.
        on_resumed: Called once such a session resumes; default: no call.
        artifacts: Where results above 256 KiB are kept, as in `SessionClient`.

    Returns:
        The client, and the memory.

    Raises:
        Invalid: A name is not allowed.
    """
    if memory is None:
        memory = InMemoryTransport(quota=quota)
    elif quota is not None:
        raise Invalid("invalid_value", "the quota is that of the memory: pass only one of both")
    settings = settings or ProducerSettings.from_env({})
    if memory.has_quota:
        settings = settings.model_copy(update={"quotas": True})
    client = SessionClient(
        tenant_id=tenant_id,
        service_id=service_id,
        agent_id=agent_id,
        settings=settings,
        on_error=on_error,
        on_rejected=on_rejected,
        on_timed_out=on_timed_out,
        on_fenced=on_fenced,
        on_paused=on_paused,
        on_resumed=on_resumed,
        ports=memory_ports(memory, tenant_id, service_id),
        artifacts=artifacts,
    )
    return client, memory
