"""How a client is opened by the names and settings that a user gives."""

from typing import TYPE_CHECKING

from sessionary.producers.client_core.core import ClientCore
from sessionary.producers.context.thread_inheritance import inherit_in_threads
from sessionary.producers.delivery.emitter import SenderIdentity
from sessionary.producers.judgement.notices import Callbacks
from sessionary.producers.ports import Ports
from sessionary.schemas.fast_replace import speed_up
from sessionary.schemas.ids import checked_name

if TYPE_CHECKING:
    from pathlib import Path

    from sessionary.producers.artifacts.library import ArtifactLibrary
    from sessionary.producers.settings import ProducerSettings


# The client's library of artifacts, by the place that a user names.


def open_library(place: "ArtifactLibrary | Path | str | None") -> "ArtifactLibrary | None":
    """Return the library at a place, or the given one; None without a place.

    Raises `SettingsError` if the extra `artifacts` is missing, or fsspec does not know the URL.
    """
    if place is None:
        return None
    from sessionary.producers.artifacts.library import ArtifactLibrary  # most clients have none

    return place if isinstance(place, ArtifactLibrary) else ArtifactLibrary(place)


def open_client(
    names: tuple[str, str, str, str | None, str | None],
    settings: "ProducerSettings | None",
    callbacks: Callbacks,
    ports: Ports | None,
    artifacts: "ArtifactLibrary | Path | str | None",
) -> ClientCore:
    """Return the core of a client. Raises as `SessionClient` does.

    `names`: of tenant, service, agent, the agent's role, and the actor.
    """
    tenant_id, service_id, agent_id, agent_role, actor = names
    identity = SenderIdentity(checked_name("service", service_id), checked_name("agent", agent_id), agent_role, actor)
    from sessionary.producers.settings import ProducerSettings

    given = settings if settings is not None else ProducerSettings.from_env()
    library = open_library(given.artifacts_url if artifacts is None else artifacts)
    core = ClientCore(checked_name("tenant", tenant_id), identity, given, callbacks, ports, library)
    if given.inherit_in_threads:
        inherit_in_threads()
    speed_up("sessionary")  # what a verb makes on its way to the spool; all its modules are loaded
    return core
