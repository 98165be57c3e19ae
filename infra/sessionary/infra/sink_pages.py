"""Asks the sinks of a local stack for their pages: whether they are ready, and what blocks them."""

import http.client
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Final

from sessionary.infra.local.ports import LOOPBACK
from sessionary.infra.metrics_targets import recorded_ports
from sessionary.schemas.topics import SINK_TOPICS

_PART: Final = "sink-"  # of a local stack, before the sink's kind
_WELL: Final = "ok"
_TEXT_BYTES_MAX: Final = 4_096


def find_sink_faults(environ: Mapping[str, str], timeout_s: float) -> dict[str, str | None]:
    """Return kind of sink → why it is not well, None if it is; empty without a stack's variables.

    `timeout_s` holds for each page; a sink has two of them.
    """
    ports = recorded_ports(environ, [f"{_PART}{kind}" for kind in sorted(SINK_TOPICS)])
    return {
        part.removeprefix(_PART): _find_fault(f"http://{LOOPBACK}:{port}", timeout_s) for part, port in ports.items()
    }


def _find_fault(address: str, timeout_s: float) -> str | None:
    """Return what blocks a sink by its pages, else why it does not keep up."""
    try:
        _, health = _read_page(f"{address}/healthz", timeout_s)
        is_ready, readiness = _read_page(f"{address}/readyz", timeout_s)
    except (OSError, ValueError, http.client.HTTPException):
        return f"{address} does not answer"
    if health != _WELL:  # a sink with a blocked partition is alive, and ready for the others
        return health
    return None if is_ready else readiness


def _read_page(page: str, timeout_s: float) -> tuple[bool, str]:
    """Return whether a page's status is 200, and its text. Raises `OSError`, `HTTPException`."""
    try:
        with urllib.request.urlopen(page, timeout=timeout_s) as answer:
            return True, answer.read(_TEXT_BYTES_MAX).decode(errors="replace").strip()
    except urllib.error.HTTPError as refusal:
        with refusal:
            return False, refusal.read(_TEXT_BYTES_MAX).decode(errors="replace").strip()
