"""Reads the pages that a role serves: its metrics, and whether it is well."""

import urllib.error
import urllib.request
from typing import Final

_ANSWER_S: Final = 60.0


def read_series(page: str) -> dict[str, float]:
    """Return the value of each series of a page, by its name with labels."""
    pairs = (line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))
    return {series: float(value) for series, value in pairs}


def read_page(url: str) -> tuple[int, str]:
    """Return a page's status and text. Raises `OSError` if nothing answers."""
    try:
        with urllib.request.urlopen(url, timeout=_ANSWER_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def metric_values(port: int) -> dict[str, float]:
    """Return the value of each series of a worker; none without an answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=_ANSWER_S) as answer:
            return read_series(answer.read().decode())
    except OSError:
        return {}


def metric_value(port: int, series: str) -> float | None:
    """Return a series' value, by its name with labels; None without an answer."""
    return metric_values(port).get(series)
