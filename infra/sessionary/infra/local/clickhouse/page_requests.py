"""Which requests a web page of another site may have sent. Pure.

Any page that a developer opens can send requests to 127.0.0.1. Its browser tells so: by `Origin`,
by `Sec-Fetch-Site`, or, if the page's host name was resolved to 127.0.0.1 (DNS rebinding), by
`Host`. A driver or curl sends none of these, or a loopback address as the host.
"""

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

_LOOPBACK: Final = frozenset(("127.0.0.1", "localhost", "::1"))


def page_refusal(headers: Mapping[str, str], port: int) -> str | None:
    """Return why a request is refused; None if it is none of another site's page.

    `headers` have lower-case names. `port` is for the advice in the text.
    """
    host = headers.get("host")
    if host is not None and _host_name(f"//{host}") not in _LOOPBACK:
        return (
            f"the request is for host {host[:100]!r}, which is not this machine's loopback address: "
            f"use http://127.0.0.1:{port}"
        )
    origin = headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != (host or ""):
        return (
            f"a page of origin {origin[:100]!r} may not ask this ClickHouse: ask it from a program, with its password"
        )
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return "a page of another site may not ask this ClickHouse: ask it from a program, with its password"
    return None


def _host_name(address: str) -> str | None:
    try:
        return urlsplit(address).hostname
    except ValueError:
        return None
