"""Proxies of the environment: which requests go through one, and what an error says about it.

What is on loopback is asked directly, whatever the environment says: no proxy can reach it.
"""

import ipaddress
import ssl
from http.client import HTTPResponse
from typing import cast
from urllib.parse import SplitResult, urlsplit
from urllib.request import HTTPSHandler, ProxyHandler, Request, build_opener, getproxies, proxy_bypass

from sessionary.schemas.errors import SettingsError


def is_loopback(host: str) -> bool:
    """Return whether a host, without its port, is this machine by its name or address alone."""
    name = host.strip("[]").rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback or address.is_unspecified


def named_proxy(server: SplitResult) -> SplitResult | None:
    """Return the proxy that the environment or the system names, whether it is bypassed or not.

    None for a server on loopback. Raises `SettingsError` without the proxy's URL, which may hold a
    password.
    """
    proxy = None if is_loopback(server.hostname or "") else getproxies().get(server.scheme)
    if not proxy:
        return None
    try:
        place = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
        is_usable = bool(place.hostname) and place.port != 0
    except ValueError:
        is_usable = False
    if is_usable:
        return place
    if proxy_bypass(server.netloc):  # a proxy of the environment: then no system asks for an address
        return None
    raise SettingsError(f"{server.scheme}_proxy: it is not the URL of a proxy, such as http://proxy:3128")


def describe_proxy(scheme: str, proxy: SplitResult | None) -> str:
    """Return what an error adds to a server's name, without the proxy's password; may be empty."""
    if proxy is None:
        return ""
    host = proxy.netloc.rpartition("@")[2]
    return f" (through the proxy {proxy.scheme}://{host} of {scheme}_proxy; no_proxy lists what is asked directly)"


def proxy_note(url: str) -> str:
    """Return what an error adds to the name of the server at `url`; empty without a proxy."""
    server = urlsplit(url)
    try:
        proxy = named_proxy(server)
        return "" if proxy is None or proxy_bypass(server.netloc) else describe_proxy(server.scheme, proxy)
    except (SettingsError, OSError):
        return ""


def open_url(request: Request | str, timeout_s: float, tls: ssl.SSLContext | None = None) -> HTTPResponse:
    """Open a URL as `urllib.request.urlopen` does, but what is on loopback without a proxy."""
    url = request if isinstance(request, str) else request.full_url
    handlers = [HTTPSHandler(context=tls)] if tls is not None else []
    direct = [ProxyHandler({})] if is_loopback(urlsplit(url).hostname or "") else []
    return cast(HTTPResponse, build_opener(*handlers, *direct).open(request, timeout=timeout_s))
