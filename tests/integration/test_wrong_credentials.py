"""A password that a real broker refuses is known soon after the start, whatever the policy."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from sessionary.infra.local.kafka.broker import broker_answers
from sessionary.infra.local.kafka.node import NodeIdentity, QuorumMember, prepare_start, random_id
from sessionary.infra.local.ports import LOOPBACK, free_ports
from sessionary.producers import AuthenticationFailed, ProducerSettings, SessionClient
from tests.support.processes import Processes
from tests.support.waiting import wait_until

_LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"


@pytest.fixture(scope="module")
def password_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a broker's listener that demands the password `right` of the user `agent`."""
    processes = Processes("wrong-credentials")
    plain, password, controller = free_ports(3)
    listeners = f"PLAINTEXT://{LOOPBACK}:{plain},PASSWORD://{LOOPBACK}:{password}"
    properties = (
        f"listeners={listeners},CONTROLLER://{LOOPBACK}:{controller}\n"
        f"advertised.listeners={listeners}\n"
        "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,PASSWORD:SASL_PLAINTEXT\n"
        "listener.name.password.sasl.enabled.mechanisms=PLAIN\n"
        f'listener.name.password.plain.sasl.jaas.config={_LOGIN} user_agent="right";\n'
    )
    folder = tmp_path_factory.mktemp("broker")
    member = QuorumMember(1, f"{LOOPBACK}:{controller}", ("--standalone",), 1, 1, properties)
    argv = prepare_start(folder, NodeIdentity(random_id(), plain, controller), lambda _line: None, member=member)
    try:
        processes.run(argv, name="broker")
        wait_until(lambda: broker_answers(f"{LOOPBACK}:{plain}"), 90, "the broker", pause_s=0.2)
        yield f"{LOOPBACK}:{password}"
    finally:
        processes.stop()


@pytest.mark.parametrize("policy", ["spool", "block", "drop"])
def test_a_wrong_password_reaches_on_error_and_a_counter_within_ten_seconds(
    policy: str, password_servers: str, tmp_path: Path
) -> None:
    settings = ProducerSettings.from_env(
        {},
        bootstrap_servers=password_servers,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN",
        sasl_username="agent",
        sasl_password="wrong",
        delivery_policy=policy,
        spool_dir=tmp_path,
        handle_sigterm=False,
    )
    errors: list[Exception] = []
    client = SessionClient(tenant_id="acme", service_id="s", agent_id="a", settings=settings, on_error=errors.append)
    try:  # not even an event is sent
        wait_until(lambda: any(isinstance(error, AuthenticationFailed) for error in errors), 10, "the report")
        told = str(next(error for error in errors if isinstance(error, AuthenticationFailed)))
        assert "'agent'" in told
        assert "wrong" not in told
        assert sum(count for reason, count in client.counters.errors.items() if "authentication" in reason) >= 1
    finally:
        client.close(0)
