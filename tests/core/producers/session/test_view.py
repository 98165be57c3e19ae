"""The lock of a session, and its copy in a forked child."""

import hashlib
import json
import os
import subprocess
import sys
from typing import Any

import pytest

from sessionary.producers.testing import memory_client
from sessionary.schemas.events import (
    SessionCreated,
    SessionPaused,
    SessionResumed,
    SessionTerminated,
)

# A program with its own interpreter: from Python 3.12 on a fork beside threads is a warning.
_FORKED = """
import asyncio, json, os, sys, threading, time
from sessionary.producers import AsyncSessionClient, ClientClosed
from sessionary.producers.testing import memory_client

client, memory = memory_client()
session, attached = client.session(user_id="u"), None
parked = client.session(user_id="u")
parked.pause()
held, leave = threading.Event(), threading.Event()

def hold_locks():
    with session.core.emitter.lock, parked.core.emitter.lock, session.core.emitter._sequence._changed:
        held.set()
        leave.wait(600)

threading.Thread(target=hold_locks, daemon=True).start()
assert held.wait(60)
read_end, write_end = os.pipe()
child = os.fork()
if child == 0:
    verbs = {
        "activity": lambda: session.activity("llm"),
        "update_state": lambda: session.update_state({"n": 1}),
        "snapshot": session.snapshot,
        "pause": session.pause,
        "error": lambda: session.error(TimeoutError("x")),
        "complete": session.complete,
        "close": session.close,
        "force_close": session.lifecycle.force_close,
        "fail_start": lambda: session.lifecycle.fail_start("invalid_config"),
        "detach": session.lifecycle.detach,
        "sync": session.sync,
        "resume": parked.resume,
        "recover": parked.recover,
    }
    with session:
        pass
    for name, verb in verbs.items():
        reported = {}

        def run(verb=verb, reported=reported):
            try:
                verb()
                reported["raised"] = "nothing"
            except ClientClosed as error:
                reported["raised"] = str(error)
            except Exception as error:
                reported["raised"] = repr(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(60)
        os.write(write_end, (json.dumps([name, reported.get("raised", "hangs")]) + "\\n").encode())
    os._exit(0)
os.close(write_end)
with os.fdopen(read_end) as reported:
    print(reported.read())
os.waitpid(child, 0)
leave.set()
session.activity("goes on")
assert memory.rejections() == []
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_in_a_forked_child_each_verb_of_a_parents_session_says_so_and_waits_for_no_lock() -> None:
    done = subprocess.run([sys.executable, "-c", _FORKED], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    reported: dict[str, Any] = dict(json.loads(line) for line in done.stdout.splitlines() if line)
    assert len(reported) == 13
    assert {name: why for name, why in reported.items() if "before the fork" not in why} == {}


def test_snapshots_form_a_chain_and_hash_canonical_json() -> None:
    client, memory = memory_client()
    with client, client.session(user_id="u", state={"b": 1, "a": "ö"}) as s:
        s.pause()
        s.resume()
    created, paused, ended = (
        event.payload.snapshot
        for event in memory.events()
        if isinstance(event.payload, SessionCreated | SessionPaused | SessionTerminated)
    )
    assert created is not None
    assert paused is not None
    assert ended is not None
    assert [created.parent_snapshot_id, paused.parent_snapshot_id, ended.parent_snapshot_id] == [
        None,
        created.snapshot_id,
        paused.snapshot_id,
    ]
    assert created.state_json == '{"a":"ö","b":1}'
    assert created.content_hash == hashlib.sha256(created.state_json.encode()).hexdigest()
    assert len(created.snapshot_id) == len("snap_") + 12
    resumed = next(event.payload for event in memory.events() if isinstance(event.payload, SessionResumed))
    assert resumed.snapshot_id == paused.snapshot_id
