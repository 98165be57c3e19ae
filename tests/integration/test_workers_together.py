"""Workers of one group that must not be together as they are: both sides, and doctor, say so."""

import json
import socket

from sessionary.infra.cli.commands.doctor import run_checks
from sessionary.infra.local.ports import LOOPBACK, free_port, free_ports
from sessionary.infra.local.process import Child
from sessionary.schemas.settings import ClickHouseSettings, KafkaSettings
from tests.integration.pipeline_rig import COMMAND
from tests.integration.processor_load import start_processor
from tests.support import Processes, wait_until
from tests.support.migrated_tables import make_tables
from tests.support.pipelines import environment

WAIT_S = 180.0
TOKENS = json.dumps({"op": {"principal": "on-call", "roles": ["operator"]}})


def has_said(child: Child, text: str) -> bool:
    return text in child.log.read_text("utf-8")


def test_two_workers_of_one_name_both_say_so_and_work_on_and_one_without_tokens_does_not_join(
    kafka: KafkaSettings, processes: Processes
) -> None:
    ports = free_ports(2)
    one, two = (
        processes.start(
            "sessionary.stream_processors",
            env=environment(kafka, instance="w1", api_port=str(port), api_tokens=TOKENS),
            name=f"w1-{number}",
        )
        for number, port in enumerate(ports)
    )
    for child in (one, two):
        wait_until(lambda c=child: has_said(c, "by the name w1 too"), WAIT_S, "both say it")  # type: ignore[misc]
    urls = [f"http://{LOOPBACK}:{port}" for port in ports]
    environ = environment(kafka, control_url=",".join(urls), operator_token="op") | {
        "SESSIONARY_CLICKHOUSE_URL": f"http://{LOOPBACK}:{free_port()}"
    }

    def checks() -> dict[str, tuple[bool, str]]:
        return {check.check: (check.ok, check.found) for check in run_checks(environ)}

    wait_until(lambda: checks()["processor"][0], WAIT_S, "both ready", pause_s=1)
    found = checks()
    assert found["partitions"][0], found["partitions"]
    is_well, said = found["names"]
    assert not is_well
    assert f"w1 is the name of 2 processes of {kafka.topic_prefix}.processor" in said
    assert all(f"-{child.pid} at " in said for child in (one, two))

    late = start_processor(processes, kafka, "w2", api_port=str(free_port()))
    assert late.wait(WAIT_S)
    assert late.exit_code == 1
    assert has_said(late, "not set, but the group")
    assert "processor is ready" not in late.log.read_text("utf-8")


def test_of_two_sinks_of_one_name_the_former_ends_and_both_say_so(
    kafka: KafkaSettings, clickhouse: ClickHouseSettings, processes: Processes
) -> None:
    make_tables(clickhouse)
    env = environment(kafka, clickhouse, instance="s1")
    former = processes.run([COMMAND, "serve", "sink", "rejected"], env=env, name="former")
    wait_until(lambda: has_said(former, "sink rejected is ready: 4 partitions"), WAIT_S, "a sink with partitions")
    latter = processes.run([COMMAND, "serve", "sink", "rejected"], env=env, name="latter")
    assert former.wait(WAIT_S)
    assert former.exit_code not in (0, None)
    assert has_said(former, "Another sink rejected runs as SESSIONARY_INSTANCE=s1")
    named = f"SESSIONARY_INSTANCE=s1: {socket.gethostname()}-{former.pid} at "
    assert has_said(latter, f"another sink rejected is a member of the group as {named}")
    assert not has_said(former, "is a member of the group as")
    assert latter.exit_code is None
