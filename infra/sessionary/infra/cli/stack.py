"""`sessionary up`: the local stack until Ctrl-C; and what `demo` shares with it."""

import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from sessionary.infra.cli.output import Progress, remark, say, show_object, wants_json
from sessionary.infra.environment import DEFAULT_DATA, tenant_tokens

if TYPE_CHECKING:
    from sessionary.infra.local.supervisor import PartChange
    from sessionary.infra.stack import Stack

START_S_MAX = 170.0
_PORT = "Default: the folder's last one, or a free one."
PortOption = Annotated[int | None, typer.Option(min=1, max=65_535, help=_PORT, show_default=False)]


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


@contextmanager
def running(stack: "Stack") -> Iterator[None]:
    """Run the stack; on SIGTERM and Ctrl-C leave by `KeyboardInterrupt`. While it stops, neither is heard again."""
    former = signal.signal(signal.SIGTERM, _interrupt)
    try:
        stack.start()
        yield
    finally:
        interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        stack.stop()
        signal.signal(signal.SIGINT, interrupt)
        signal.signal(signal.SIGTERM, former)


def tell_deaths(change: "PartChange") -> None:
    """Say on stderr that a part ended and will be started again."""
    if change.exit_code is not None and change.wait_s is not None:
        remark(f"{change.name} ended with code {change.exit_code}; started again in {change.wait_s:g} s")


def up(
    data: Annotated[
        Path, typer.Option("--data", help="Folder of the stack; kept when it stops.", file_okay=False)
    ] = DEFAULT_DATA,
    port_broker: PortOption = None,
    port_clickhouse: PortOption = None,
    port_api: PortOption = None,
    partitions: Annotated[int, typer.Option(min=1, max=64, help="Of a new stack's topics.")] = 4,
    as_json: Annotated[bool, typer.Option("--json", help="Print the variables as a JSON object.")] = False,
) -> None:
    """Start broker, ClickHouse, processor and sinks; restart what dies; stop all on Ctrl-C. The data stays.

    Ports are those of the folder's last stack, or free ones, unless given. Other commands find the stack by
    DATA/env.json: give them --data DATA, or run them where ./.sessionary is the folder.
    """
    from sessionary.infra.stack import Ports, Stack

    progress = Progress()
    ports = Ports(port_broker, port_clickhouse, port_api)
    stack = Stack(data, ports=ports, partitions=partitions, on_change=tell_deaths)
    announced = False
    try:
        with running(stack):
            progress("starting broker, ClickHouse, processor and sinks (the very first time: about a minute)")
            stack.wait_ready(START_S_MAX)
            progress.end()
            _announce(stack.data, stack.environ, as_json=as_json)
            announced = True
            threading.Event().wait()
    except KeyboardInterrupt:
        if not announced:
            raise
        remark("stopped; the data is kept")


def _announce(data: Path, environ: Mapping[str, str], *, as_json: bool) -> None:
    if wants_json(as_json):
        show_object(environ, as_json=True)
        return
    say(f"Kafka       {environ['SESSIONARY_BOOTSTRAP_SERVERS']}")
    say(f"ClickHouse  {environ['SESSIONARY_CLICKHOUSE_URL']}")
    say(f"Control API {environ['SESSIONARY_CONTROL_URL']}")
    say(f"Logs        {data / 'logs'}")
    say("\nFor another shell:")
    for name, value in environ.items():
        say(f"export {name}='{value}'")
    for tenant, token in list(tenant_tokens(environ).items())[:1]:
        say(f"export SESSIONARY_API_TOKEN='{token}'  # for a client of tenant {tenant}")
    say("\nCtrl-C stops everything; the data stays.")


__all__ = ["START_S_MAX", "running", "tell_deaths", "up"]
