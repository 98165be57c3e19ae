"""One POST by each library that agents use for HTTP, of those that are installed."""

import asyncio
import functools
import importlib.util
import io
import ssl
import urllib.request
from collections.abc import Callable
from typing import Any, NamedTuple

# Without types, as most of these libraries are not installed where types are checked.
Made = Callable[["Request"], object]


class Request(NamedTuple):
    """A request: its URL, the seconds that it may take, its body, and the proxy that it goes by."""

    url: str
    seconds: float = 60.0
    body: bytes = b"x"
    proxy: str | None = None


def by_urllib(request: Request) -> object:
    proxies = {} if request.proxy is None else {"http": request.proxy, "https": request.proxy}
    opener = urllib.request.build_opener(urllib.request.ProxyHandler(proxies))
    asked = urllib.request.Request(request.url, request.body)
    with opener.open(asked, timeout=request.seconds) as answer:
        return answer.read()


def by_urllib3(request: Request) -> object:
    library: Any = importlib.import_module("urllib3")
    options = {"retries": False, "timeout": request.seconds}
    pool = library.PoolManager(**options) if request.proxy is None else library.ProxyManager(request.proxy, **options)
    answer = pool.request("POST", request.url, body=request.body)
    if answer.status >= 400:
        raise StatusError(answer.status)
    return answer.data


def by_requests(request: Request) -> object:
    library: Any = importlib.import_module("requests")
    with library.Session() as session:
        session.trust_env = False
        proxies = {"http": request.proxy, "https": request.proxy}
        answer = session.post(request.url, data=request.body, timeout=request.seconds, proxies=proxies)
        answer.raise_for_status()
        return answer.content


def by_httpx(request: Request, name: str = "httpx") -> object:
    library: Any = importlib.import_module(name)
    options = {"trust_env": False, "proxy": request.proxy, "verify": _trusted()}
    with library.Client(timeout=request.seconds, **options) as client:
        return client.post(request.url, content=request.body).raise_for_status()


def by_httpx2(request: Request) -> object:
    return by_httpx(request, "httpx2")


def by_async_httpx(request: Request) -> object:
    library: Any = importlib.import_module("httpx")

    async def post() -> object:
        options = {"trust_env": False, "proxy": request.proxy, "verify": _trusted()}
        async with library.AsyncClient(timeout=request.seconds, **options) as client:
            return (await client.post(request.url, content=request.body)).raise_for_status()

    return asyncio.run(post())


def by_aiohttp(request: Request) -> object:
    library: Any = importlib.import_module("aiohttp")

    async def post() -> object:
        # The first two do not bound how long a body is sent.
        seconds = request.seconds
        limits = library.ClientTimeout(sock_connect=seconds, sock_read=seconds, total=3 * seconds)
        async with (
            library.ClientSession(timeout=limits, raise_for_status=True) as session,
            session.post(request.url, data=io.BytesIO(request.body), proxy=request.proxy) as answer,
        ):
            return await answer.read()

    return asyncio.run(post())


def by_botocore(request: Request) -> object:
    config: Any = importlib.import_module("botocore.config")
    proxies = {} if request.proxy is None else {"http": request.proxy, "https": request.proxy}
    options = config.Config(
        retries={"max_attempts": 0},
        read_timeout=request.seconds,
        connect_timeout=request.seconds,
        proxies=proxies,
        s3={"addressing_style": "path"},
    )
    client = _botocore_session().create_client("s3", region_name="us-east-1", endpoint_url=request.url, config=options)
    return client.put_object(Bucket="bucket", Key="key", Body=request.body)["ETag"]


@functools.cache
def _botocore_session() -> Any:
    library: Any = importlib.import_module("botocore.session")
    session = library.get_session()
    session.set_credentials("id", "secret")
    return session


def by_openai(request: Request) -> object:
    library: Any = importlib.import_module("openai")
    with library.OpenAI(
        base_url=request.url,
        api_key="k",
        max_retries=0,
        timeout=request.seconds,
        http_client=_httpx_of(library, request),
    ) as client:
        message = {"role": "user", "content": request.body.decode()}
        return client.chat.completions.create(model="m", messages=[message])


def by_anthropic(request: Request) -> object:
    library: Any = importlib.import_module("anthropic")
    with library.Anthropic(
        base_url=request.url,
        api_key="k",
        max_retries=0,
        timeout=request.seconds,
        http_client=_httpx_of(library, request),
    ) as client:
        message = {"role": "user", "content": request.body.decode()}
        return client.messages.create(model="m", max_tokens=1, messages=[message])


def _httpx_of(library: Any, request: Request) -> Any:
    return library.DefaultHttpxClient(trust_env=False, proxy=request.proxy, verify=_trusted())


@functools.cache
def _trusted() -> ssl.SSLContext:
    """Return the authorities of this machine, which take long to load."""
    return ssl.create_default_context()


class StatusError(Exception):
    """A status that its library raises nothing for."""

    def __init__(self, status: int) -> None:
        super().__init__(f"answer {status}")
        self.status = status


_ALL: dict[str, Made] = {
    "urllib": by_urllib,
    "urllib3": by_urllib3,
    "requests": by_requests,
    "httpx": by_httpx,
    "httpx async": by_async_httpx,
    "httpx2": by_httpx2,
    "aiohttp": by_aiohttp,
    "botocore": by_botocore,
    "openai": by_openai,
    "anthropic": by_anthropic,
}
LIBRARIES: dict[str, Made] = {
    name: made for name, made in _ALL.items() if importlib.util.find_spec(name.partition(" ")[0]) is not None
}
