"""Runs a broker with a second listener, for clients behind a TCP proxy.

Arguments: the options of `sessionary serve broker`, then the second port and the proxy's.
"""

import argparse
from pathlib import Path

from sessionary.infra.local.kafka.cluster import run_broker, run_node
from sessionary.infra.local.kafka.node import ProxiedListener


def _ignore_progress(_line: str) -> None:
    return None


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--port", type=int)
    parser.add_argument("--node", type=int)
    parser.add_argument("second_port", type=int)
    parser.add_argument("proxy_port", type=int)
    given = parser.parse_args()
    listener = ProxiedListener(given.second_port, given.proxy_port)
    if given.node is None:
        run_broker(given.data, given.port, listener=listener)
    else:
        run_node(given.data, given.node, _ignore_progress, listener)
