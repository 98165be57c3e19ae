"""A password that a real broker refuses is known soon after the start, whatever the policy."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka.admin import AdminClient

from sessionary.producers import AuthenticationFailed, ProducerSettings, SessionClient
from tests.support.certificates import CertificateAuthority
from tests.support.processes import Processes
from tests.support.secured_broker import PASSWORD, SecuredBroker
from tests.support.waiting import wait_until


class Passwords(NamedTuple):
    """A broker's listener that demands a password, and who signed its certificate."""

    servers: str
    authority: Path


@pytest.fixture(scope="module")
def passwords(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Passwords]:
    processes, folder = Processes("wrong-credentials"), tmp_path_factory.mktemp("broker")
    authority = CertificateAuthority(folder / "certificates")
    try:
        broker = SecuredBroker(folder / "broker", authority, processes)
        yield Passwords(broker.password_servers, authority.file)
    finally:
        processes.stop()


def log_in_s(passwords: Passwords) -> float:
    """Return how long it takes here and now to log in with the right password, in seconds."""
    began_s = time.monotonic()
    known = {"sasl.username": "agent", "sasl.password": PASSWORD, "ssl.ca.location": str(passwords.authority)}
    way = {"bootstrap.servers": passwords.servers, "security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}
    AdminClient({**way, **known}).list_topics(timeout=120)
    return time.monotonic() - began_s


@pytest.mark.parametrize("policy", ["spool", "block", "drop"])
def test_a_wrong_password_reaches_on_error_and_a_counter_within_ten_seconds(
    policy: str, passwords: Passwords, tmp_path: Path
) -> None:
    settings = ProducerSettings.from_env(
        {},
        bootstrap_servers=passwords.servers,
        security_protocol="SASL_SSL",
        ssl_ca_location=str(passwords.authority),
        sasl_mechanism="PLAIN",
        sasl_username="agent",
        sasl_password="wrong",
        delivery_policy=policy,
        spool_dir=tmp_path,
        handle_sigterm=False,
    )
    errors: list[Exception] = []
    began_s = time.monotonic()
    client = SessionClient(tenant_id="acme", service_id="s", agent_id="a", settings=settings, on_error=errors.append)
    try:  # not even an event is sent
        wait_until(lambda: any(isinstance(error, AuthenticationFailed) for error in errors), 120, "the report")
        reported_s = time.monotonic() - began_s
        assert reported_s < 10 or any(reported_s - 10 < 6 * log_in_s(passwords) for _ in range(3))
        reported = str(next(error for error in errors if isinstance(error, AuthenticationFailed)))
        assert "'agent'" in reported
        assert "wrong" not in reported
        assert sum(count for reason, count in client.counters.errors.items() if "authentication" in reason) >= 1
    finally:
        client.close(0)
