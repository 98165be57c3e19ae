"""Reads a worker's metrics page."""

import urllib.request


def metric_value(port: int, series: str) -> float | None:
    """Return a series' value, by its name with labels; None without an answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            page: str = answer.read().decode()
    except OSError:
        return None
    values = dict(line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))
    return float(values[series]) if series in values else None
