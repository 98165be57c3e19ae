"""Recorded tool calls of real processes: two at once, and one whose network is cut meanwhile."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event, Thread

import pytest

from sessionary.infra.local.kafka.cluster import broker_answers
from sessionary.infra.local.ports import LOOPBACK, free_ports
from sessionary.producers import SessionClient, Unavailable, tool
from sessionary.schemas import codec
from sessionary.schemas.events import RunCompleted, SessionActivity, ToolCallStarted, ToolCallSucceeded
from sessionary.schemas.settings import KafkaSettings
from tests.integration.pipeline_rig import TENANT, TOKEN, PipelineRig
from tests.style.project import ROOT
from tests.support import Processes, environment, read_events, wait_until
from tests.support.pipelines import new_pipeline
from tests.support.tcp_proxy import TcpProxy

WAIT_S = 180.0
REPORTED = 200
# Makes one call of a session as soon as it is asked to; each effect leaves a line.
CALLER = """
import os, sys
from pathlib import Path
from sessionary.producers import SessionClient, tool
folder, session_id = Path(sys.argv[1]), sys.argv[2]

@tool(effect="write", wait_s=120)
def send_message(text):
    with open(folder / "effects", "a") as effects:
        effects.write(f"{os.getpid()}\\n")
    return "message 1"

with SessionClient(tenant_id="acme", service_id="billing", agent_id="a") as client:
    session = client.attach(session_id)
    with session.run("notify", run_id="r", mode="detached", resume=True):
        print("ready", flush=True)
        sys.stdin.readline()
        print(send_message("hello"), flush=True)
        sys.stdin.readline()
    session.lifecycle.detach()
"""


def test_of_two_processes_that_start_the_same_call_at_once_one_executes_it(
    kafka: KafkaSettings, processes: Processes, tmp_path: Path
) -> None:
    pipeline = PipelineRig(kafka, None, processes)
    pipeline.start_processor()
    with SessionClient(
        tenant_id=TENANT, service_id="billing", agent_id="a", settings=pipeline.client_settings(tmp_path)
    ) as client:
        session = client.session(user_id="u")
        run = session.run("notify", run_id="r", mode="detached")
        run.__enter__()
        session.sync()
        run._leave_metadata()
        with ExitStack() as callers:
            both = [callers.enter_context(caller(kafka, pipeline, tmp_path, session.session_id, n)) for n in "ab"]
            for say in ("go\n", "end\n"):
                for one in both:
                    assert one.stdin is not None
                    one.stdin.write(say)
                    one.stdin.flush()
                if say == "go\n":
                    assert [read_line(one) for one in both] == ["message 1"] * 2
        session.lifecycle.detach()
    assert len((tmp_path / "effects").read_text().split()) == 1
    payloads = [event.payload for event in read_events(kafka) if isinstance(event, codec.Event)]
    assert sum(isinstance(payload, ToolCallSucceeded) for payload in payloads) == 1
    assert len({payload.idem_key for payload in payloads if isinstance(payload, ToolCallStarted)}) == 1


@contextmanager
def caller(
    kafka: KafkaSettings, pipeline: PipelineRig, folder: Path, session_id: str, name: str
) -> Iterator["subprocess.Popen[str]"]:
    """Run a process that is about to make its call."""
    own = {"control_url": pipeline.control_url, "api_token": TOKEN, "spool_dir": str(folder / f"{name}-spool")}
    own |= {"verdict_timeout_s": "120", "close_timeout_s": "120"}
    with subprocess.Popen(
        [sys.executable, "-c", CALLER, str(folder), session_id],
        env={**os.environ, **environment(kafka, **own)},
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert read_line(process) == "ready"
            yield process
            process.wait(WAIT_S)
        finally:
            process.kill()
    assert process.returncode == 0


def read_line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


class CutNetwork:
    """A broker and a processor, each behind a proxy that a client has to pass."""

    def __init__(self, processes: Processes, folder: Path) -> None:
        direct, proxied, through, api = free_ports(4)
        argv = ["--data", str(folder / "kafka"), "--port", str(direct), str(proxied), str(through)]
        processes.start("tests.support.proxied_broker", *argv)
        wait_until(lambda: broker_answers(f"{LOOPBACK}:{direct}"), 60, "the broker to answer")
        self.kafka = new_pipeline(f"{LOOPBACK}:{direct}")
        pipeline = PipelineRig(self.kafka, None, processes)
        pipeline.start_processor()
        self._broker, self._control = TcpProxy(through, proxied), TcpProxy(api, pipeline.api_port)
        self.settings = pipeline.client_settings(folder).model_copy(
            update={"bootstrap_servers": f"{LOOPBACK}:{through}", "control_url": f"http://{LOOPBACK}:{api}"}
        )

    @contextmanager
    def proxies(self) -> Iterator[None]:
        """Let the client's connections through."""
        with self._broker, self._control:
            yield

    def cut(self, until: Callable[[], bool]) -> Thread:
        """Break all connections and hold new ones; return what mends that once `until` holds."""
        for proxy in (self._broker, self._control):
            proxy.hold_packets()
            proxy.reset_connections()

        def mend() -> None:
            wait_until(until, WAIT_S, "the time to mend the network")
            for proxy in (self._broker, self._control):
                proxy.pass_packets()

        mending = Thread(target=mend)
        mending.start()
        return mending


def test_a_run_whose_network_is_cut_goes_on_and_loses_and_repeats_nothing(processes: Processes, tmp_path: Path) -> None:
    network, sent, mending = CutNetwork(processes, tmp_path), list[str](), list[Thread]()

    @tool(effect="write", deadline=60)
    def send_message(text: str) -> int:
        sent.append(text)
        # Its outcome is the first of what follows that cannot get through, and waits for it.
        mending.append(network.cut(lambda: client.backlog.events > REPORTED))
        for number in range(REPORTED):
            session.info(f"while the network is cut: {number}")
        return len(sent)

    with network.proxies():
        with (
            SessionClient(tenant_id=TENANT, service_id="billing", agent_id="a", settings=network.settings) as client,
            client.session(user_id="u") as session,
            session.run("report", run_id="r") as run,
        ):
            assert run.step("notify", send_message, "hello") == 1
            mending[0].join(WAIT_S)
            assert run.step("once more", lambda: 2) == 2
        refuse_call(network, tmp_path, sent)
    assert sent == ["hello"]
    # What may have arrived before the cut is sent again, as the same event.
    events = {event.envelope.event_id: event for event in read_events(network.kafka) if isinstance(event, codec.Event)}
    payloads = [event.payload for event in events.values()]
    reported = [payload.text for payload in payloads if isinstance(payload, SessionActivity)]
    assert reported == [f"while the network is cut: {number}" for number in range(REPORTED)]
    assert [json.loads(one.result_json or "") for one in payloads if isinstance(one, ToolCallSucceeded)] == [1]
    assert sum(isinstance(payload, RunCompleted) for payload in payloads) == 1


def refuse_call(network: CutNetwork, folder: Path, sent: list[str]) -> None:
    """Make a call that cannot be reserved, as the broker is away: it is not made."""
    brief = {"verdict_timeout_s": 1.0, "spool_dir": folder / "other-spool"}
    send, is_over = tool(effect="write", name="send")(sent.append), Event()
    with (
        SessionClient(
            tenant_id=TENANT, service_id="billing", agent_id="b", settings=network.settings.model_copy(update=brief)
        ) as client,
        client.session(user_id="u"),
    ):
        assert client.flush(WAIT_S) == 0
        mending = network.cut(is_over.is_set)
        with pytest.raises(Unavailable):
            send("never")
        is_over.set()
        mending.join(WAIT_S)
