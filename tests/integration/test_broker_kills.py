"""A broker that is killed under load again and again: how long each partition then stands still.

A broker that gets too little time after its start misses the heartbeats to its own controller. That
fences it, and until it is taken back it answers that the cluster has no broker. A librdkafka client
that hears this forgets its only broker for ever. A fetcher that had done so was not replaced in
former releases: its partitions waited two minutes for the end of the process.
"""

import os
import signal
import time
from pathlib import Path
from typing import NamedTuple

from sessionary.infra.local.kafka.cluster import LocalBroker, broker_answers
from sessionary.infra.local.ports import free_port
from sessionary.producers import SessionClient
from tests.integration.pipeline_rig import TENANT, PipelineRig
from tests.integration.transaction_waits import measure_waits, start_in_each_partition, steady_work
from tests.support.pipelines import environment, new_pipeline
from tests.support.processes import Processes
from tests.support.waiting import wait_until

GO_ON_S_MAX = 60.0
QUICK_START_S = 15.0  # an idle machine needs less for the broker's start
START_S_MAX = 300.0
ASK_S = 60.0  # for the answer
# Seconds for which the broker is away. In a round it is killed again as soon as it has answered, so
# that the second kill hits the recovery from the first.
ROUNDS_S = ((2.0,), (0.2, 0.2))
STALL_S = 4.0  # longer than the broker's session with its controller
STALL_ROUNDS = 4


class Restart(NamedTuple):
    """When a broker first answered, in epoch ms, and how long its start took."""

    answered_ms: int
    start_s: float

    @property
    def limit_s(self) -> float:
        """For how long a partition may wait: longer on a machine that needs long for the start."""
        return GO_ON_S_MAX + 4 * max(0.0, self.start_s - QUICK_START_S)


def wait_for_answer(broker: LocalBroker) -> None:
    """Wait until the broker answers, and notice it at once: it is killed or stalled again then."""
    servers = broker.bootstrap_servers
    wait_until(lambda: broker_answers(servers, 1.0), 180, "the broker to answer", pause_s=0.1, exact=True)


def restart_killed(broker: LocalBroker, away_s: float) -> Restart:
    """Kill a broker, start it after some seconds, and wait until it answers."""
    broker.kill()
    time.sleep(away_s)
    began_s = time.monotonic()
    broker.start()
    wait_for_answer(broker)
    return Restart(int(time.time() * 1_000), time.monotonic() - began_s)


def stall_broker(broker: LocalBroker) -> int:
    """Stall the broker's process; return when it then answered, in epoch ms.

    Its controller fences it for a moment. Not every client asks for the brokers in that moment.
    """
    assert broker.pid is not None
    os.killpg(broker.pid, signal.SIGSTOP)
    time.sleep(STALL_S)
    os.killpg(broker.pid, signal.SIGCONT)
    wait_for_answer(broker)
    return int(time.time() * 1_000)


def test_each_partition_goes_on_within_a_minute_of_the_answer_of_a_killed_broker(
    broker: LocalBroker, processes: Processes, tmp_path: Path
) -> None:
    kafka = new_pipeline(broker.bootstrap_servers)
    rig = PipelineRig(kafka, None, processes)
    rig.start_processor()
    second = environment(kafka, instance="w2", api_port=str(free_port()))
    processes.start("sessionary.stream_processors", env=second, name="processor-w2")
    settings = rig.client_settings(tmp_path)
    with SessionClient(tenant_id=TENANT, service_id="billing", agent_id="a", settings=settings) as client:
        sessions = start_in_each_partition(client, kafka, TENANT)
        before_ms = int(time.time() * 1_000)
        with steady_work(sessions):
            assert max(measure_waits(kafka, before_ms, START_S_MAX).values()) < START_S_MAX
            for kills_s in ROUNDS_S:
                last = max([restart_killed(broker, away_s) for away_s in kills_s])
                waits = measure_waits(kafka, last.answered_ms, last.limit_s + ASK_S)
                assert max(waits.values()) <= last.limit_s, (waits, last)
            for _ in range(STALL_ROUNDS):
                last = restart_killed(broker, 0.2)._replace(answered_ms=stall_broker(broker))
                waits = measure_waits(kafka, last.answered_ms, last.limit_s + ASK_S)
                assert max(waits.values()) <= last.limit_s, (waits, last)
        for session in sessions:
            session.lifecycle.detach()
