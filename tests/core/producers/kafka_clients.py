"""Clients with the real delivery, for a broker that is not there."""

from pathlib import Path
from typing import Any

from sessionary.producers import ProducerSettings, SessionClient


def new_settings(bootstrap_servers: str, spool_dir: Path, **more: Any) -> ProducerSettings:
    given = {"close_timeout_s": 0.1, "handle_sigterm": False, "spool_dir": spool_dir, **more}
    return ProducerSettings.from_env({}, bootstrap_servers=bootstrap_servers, **given)


def new_client(settings: ProducerSettings, errors: list[Exception]) -> SessionClient:
    return SessionClient(tenant_id="acme", service_id="s", agent_id="a", settings=settings, on_error=errors.append)
