"""What the pages of sinks tell: well, blocked, behind, or no answer."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from prometheus_client import CollectorRegistry

from sessionary.infra.cli.commands.doctor import run_checks
from sessionary.infra.local.ports import LOOPBACK, free_ports
from sessionary.infra.sink_pages import find_sink_faults
from sessionary.sinks.metrics import Readiness, serve_pages

WELL, READY = (True, "ok"), (True, "ready")
BEHIND = (False, "partition 2 stands at offset 7 for 16 s, the log ends at 9")
BLOCKED = (True, "blocked: partition 1: batch_unreadable")


def saying(state: tuple[bool, str]) -> Readiness:
    """Return a page's question that is always answered so."""
    return lambda: state


@pytest.fixture
def environ() -> Iterator[dict[str, str]]:
    """The variables of a stack with one sink that is well, one behind, one blocked and one away."""
    pages = {"audit": (WELL, READY), "batches": (WELL, BEHIND), "history": (BLOCKED, READY)}
    ports = dict(zip((*pages, "rejected"), free_ports(4), strict=True))
    with ExitStack() as stack:
        for kind, (health, readiness) in pages.items():
            address, registry = (LOOPBACK, ports[kind]), CollectorRegistry()
            stack.enter_context(serve_pages(address, registry, saying(health), saying(readiness)))
        yield {f"SESSIONARY_METRICS_PORT_SINK_{kind.upper()}": f"{port}" for kind, port in ports.items()}


def test_a_sink_s_pages_tell_what_blocks_it_or_why_it_is_behind(environ: dict[str, str]) -> None:
    port = environ["SESSIONARY_METRICS_PORT_SINK_REJECTED"]
    assert find_sink_faults(environ, 60.0) == {
        "audit": None,
        "batches": BEHIND[1],
        "history": BLOCKED[1],
        "rejected": f"http://{LOOPBACK}:{port} does not answer",
    }
    assert find_sink_faults({"SESSIONARY_METRICS_PORT_LAG_EXPORTER": port}, 60.0) == {}


def test_doctor_names_each_sink_that_is_not_well(environ: dict[str, str]) -> None:
    away = {
        "SESSIONARY_BOOTSTRAP_SERVERS": f"{LOOPBACK}:{environ['SESSIONARY_METRICS_PORT_SINK_REJECTED']}",
        "SESSIONARY_CLICKHOUSE_URL": f"http://{LOOPBACK}:{environ['SESSIONARY_METRICS_PORT_SINK_REJECTED']}",
    }
    (check,) = (check for check in run_checks(environ | away) if check.check == "sinks")
    assert not check.ok
    assert [f"sink {kind}" in check.found for kind in ("audit", "batches", "history", "rejected")] == [
        False,
        *[True] * 3,
    ]
    assert "batch_unreadable" in check.found
    assert "sessionary serve sink history" in check.advice
