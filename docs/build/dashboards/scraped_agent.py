"""An agent that Prometheus scrapes: the boards have lines for clients, contexts and runs by it."""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, start_http_server

from sessionary.infra.environment import tenant_tokens
from sessionary.infra.local.ports import LOOPBACK, free_port
from sessionary.producers import ProducerSettings, SessionClient
from sessionary.producers.prometheus_metrics import ClientCollector

TENANT: Final = "acme"
_STEPS: Final = 20  # of a session
_STEP_S: Final = 0.4
_GROWTH: Final = 400_000  # bytes of context that a step adds
_RETRIED: Final = 20  # each such call of a model is a retry after a timeout
_JOIN_S: Final = 60.0


@contextmanager
def scraped_agent(environ: Mapping[str, str], folder: Path) -> Iterator[Path]:
    """Run an agent in a thread; yield a file with its target for Prometheus.

    `environ`: the stack's variables.
    """
    settings = ProducerSettings.from_env(
        environ, api_token=tenant_tokens(environ)[TENANT], spool_dir=folder / "spool", handle_sigterm=False
    )
    registry, stop = CollectorRegistry(), threading.Event()
    targets, port = folder / "agent.json", free_port()
    with SessionClient(tenant_id=TENANT, service_id="research", agent_id="agent-1", settings=settings) as client:
        registry.register(ClientCollector(client))
        server, _ = start_http_server(port, LOOPBACK, registry)
        thread = threading.Thread(target=_work, args=(client, stop), name="scraped-agent", daemon=True)
        thread.start()
        labels = {"job": "agents", "instance": "agent-1"}
        targets.write_text(json.dumps([{"targets": [f"{LOOPBACK}:{port}"], "labels": labels}]))
        try:
            yield targets
        finally:
            stop.set()
            thread.join(_JOIN_S)
            server.shutdown()


def _work(client: SessionClient, stop: threading.Event) -> None:
    """Begin a session, work on a run with a context that grows, end both; again and again."""
    while not stop.is_set():
        with client.session(user_id="ann", state={}) as session, session.run("report"):
            for step in range(_STEPS):
                session.context_bytes = (step + 1) * _GROWTH
                session.activity("llm", f"step {step}")
                session.usage(model="large", tokens_in=900, tokens_out=100, model_cost_usd_nanos=500_000)
                if step % _RETRIED == 0:
                    session.usage(model="large", tokens_in=900, model_cost_usd_nanos=450_000, is_timeout_retry=True)
                if stop.wait(_STEP_S):
                    return
