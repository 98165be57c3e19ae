"""Run a program whose transactional requests come late: `python -m tests.late_requests --help`."""

import argparse
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

from confluent_kafka import KafkaError

from tests.late_requests.proxy import KafkaProxy, LateRequest
from tests.late_requests.wire import OF_TRANSACTIONS, Request

TORN, NOTHING_HELD, USAGE = 1, 3, 2
VARIABLE: Final = "BOOTSTRAP_SERVERS"
_PLACE: Final = "{}"


def main(words: Sequence[str]) -> int:
    """Return 1 if a late request ended another transaction, 3 if none was held, else 0."""
    parser = argparse.ArgumentParser(prog="python -m tests.late_requests", description=__doc__)
    parser.add_argument("--broker", required=True, help="a broker of the cluster, as host:port")
    parser.add_argument("--hold", default="EndTxn", choices=sorted(OF_TRANSACTIONS), help="the request")
    parser.add_argument("--end", choices=("commit", "abort"), help="of EndTxn: only this end")
    parser.add_argument("--how", choices=("late", "repeated"), default="late", help="repeated: it comes at once too")
    before = "the request of the same id before which it comes late"
    parser.add_argument("--before", default="Produce", choices=sorted(OF_TRANSACTIONS), help=before)
    parser.add_argument("--nth", type=int, default=2, help="which of these")
    parser.add_argument("--times", type=int, default=3, help="how many requests are held, one after another")
    parser.add_argument("program", nargs="+", help=f"{_PLACE} becomes the proxy's address, as does ${VARIABLE}")
    given = parser.parse_args(words)
    host, _, port = given.broker.rpartition(":")
    if not port.isdecimal():
        parser.error(f"--broker {given.broker}: say host:port")
    try:
        socket.create_connection((host, int(port)), 10.0).close()
    except OSError as error:
        parser.error(f"--broker {given.broker} does not answer: {error}")
    with KafkaProxy(given.broker) as proxy:
        series = _Series(proxy, given)
        series.hold_next()
        argv = [word.replace(_PLACE, proxy.address) for word in given.program]
        code = subprocess.run(argv, env={**os.environ, VARIABLE: proxy.address}, check=False).returncode
    _say(f"the program ended with code {code}\n")
    return _report(series.held)


class _Series:
    """Requests that are held one after another, each until the one before was delivered."""

    def __init__(self, proxy: KafkaProxy, given: argparse.Namespace) -> None:
        self._proxy, self._given = proxy, given
        self.held: list[LateRequest] = []

    def hold_next(self) -> None:
        """Hold one more, if there are to be more."""
        if len(self.held) >= self._given.times:
            return
        wanted, seen = self._given, 0

        def matches(request: Request) -> bool:
            is_end = request.commit is None or wanted.end in (None, "commit" if request.commit else "abort")
            return request.api == wanted.hold and is_end

        late = self._proxy.hold(matches, wanted.how)

        def is_moment(request: Request) -> bool:
            nonlocal seen
            assert late.request is not None
            seen += request.transactional_id == late.request.transactional_id and request.api == wanted.before
            if seen < wanted.nth:
                return False
            self.hold_next()
            return True

        late.deliver_before(is_moment)
        self.held.append(late)


def _report(held: Sequence[LateRequest]) -> int:
    """Print a line for each late request; return the exit code."""
    delivered = [late for late in held if late.request is not None and late.is_answered]
    if not delivered:
        _say("no request was held and delivered: the program made too few transactions, or not by the proxy\n")
        return NOTHING_HELD
    torn = [late for late in delivered if late.met_open and late.error == 0 and _ends(late)]
    for late in delivered:
        assert late.request is not None
        answer = "carried out" if late.error == 0 else f"refused, {KafkaError(late.error or 0).name()}"
        moment = "in another transaction" if late.met_open else "between transactions"
        verdict = "   IT ENDED THAT TRANSACTION" if late in torn else ""
        _say(f"{late.request.label:<40} late, {moment}: {answer}{verdict}\n")
    return TORN if torn else 0


def _ends(late: LateRequest) -> bool:
    return late.request is not None and late.request.api == "EndTxn"


def _say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
