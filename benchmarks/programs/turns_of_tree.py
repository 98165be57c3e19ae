"""A program that works turns of an agent with the client of the tree in which it runs.

    python turns_of_tree.py WAY TURNS SNAPSHOTS

It is started by its path, with the tree's folders first on PYTHONPATH, by a program that counts
instructions. SNAPSHOTS: `on` or `off`; only a tree that has them is asked for them.

    emit   verbs that wait for nothing, into the spool; no broker is there, and another thread,
           which is not counted, looks for one
    turns  the same, a recorded tool call, and an update of the content, which wait for verdicts;
           the client in memory judges in the same thread

A turn of `emit` is two messages, activity, usage and progress. The content has about 4 kB.

It prints one line of JSON: the number of events, and the file of the client's package, which
identifies the tree. It leaves without closing the client, which would wait for the broker.
"""

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from sessionary import producers
from sessionary.producers import ProducerSettings, SessionClient, tool
from sessionary.producers.testing import memory_client

_TEXT = "the agent thinks about what comes next, and says so in a sentence " * 5
_STATE = {"plan": [f"step {number}: look it up, compare, and write it down" for number in range(70)]}
_NO_BROKER = "127.0.0.1:1"


@tool(effect="read")
def look_up(query: str) -> list[str]:
    """Find papers."""
    return [query, _TEXT]


def work_turn(session: Any, number: int, *, waits: bool) -> None:
    """Send the events of one turn."""
    session.message("user", f"question {number}: {_TEXT}")
    if waits:
        look_up(f"query {number}")
        session.update_state({**_STATE, "turn": number})
    session.activity("llm", _TEXT)
    session.usage(model="large", tokens_in=1_200, tokens_out=300, model_cost_usd_nanos=5_400_000)
    session.progress(number, number + 1, "collected")
    session.message("assistant", f"answer {number}: {_TEXT}")


def main(way: str, turns: str, snapshots: str) -> None:
    """Work, print, and leave."""
    options: dict[str, Any] = {"snapshots": True} if snapshots == "on" else {}
    if way == "turns":
        client, _ = memory_client()
    else:
        spool = tempfile.mkdtemp(prefix="sessionary-bench-spool-")
        settings = ProducerSettings(spool_dir=Path(spool), bootstrap_servers=_NO_BROKER)
        client = SessionClient(tenant_id="acme", service_id="billing", agent_id="agent-1", settings=settings)
    with client.session(user_id="u1", state=_STATE, **options) as session:
        for number in range(int(turns)):
            work_turn(session, number, waits=way == "turns")
        sys.stdout.write(json.dumps({"events": client.counters.sent, "client": producers.__file__}) + "\n")
        sys.stdout.flush()
        os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
