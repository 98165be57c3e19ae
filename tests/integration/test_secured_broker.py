"""All roles on a broker with TLS, log-ins and the ACLs of docs/operate/security.md."""

import json
import re
import shlex
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message, Producer

from sessionary.infra.local.ports import free_port
from sessionary.producers import AuthenticationFailed, ProducerSettings, Session, SessionClient, SessionLost, tool
from sessionary.schemas.records import AuditRecord
from sessionary.schemas.settings import ClickHouseSettings, KafkaSettings
from sessionary.stream_processors.api.operators.rules import count_quota_workers
from tests.integration.pipeline_rig import COMMAND, TENANT, TOKEN
from tests.style.project import ROOT
from tests.support.certificates import CertificateAuthority
from tests.support.pipelines import environment, new_pipeline, run_sql
from tests.support.processes import Processes
from tests.support.reading import read_records, read_topic
from tests.support.secured_broker import PASSWORD, SecuredBroker
from tests.support.token_endpoint import TokenEndpoint
from tests.support.waiting import wait_until

_RECIPE = re.compile(r"^    kafka-acls --add (.+)$", re.MULTILINE)
_RESOURCES = {"--topic": "topic", "--group": "group", "--transactional-id": "transactional_id"}

_TASKS = """
from sessionary.producers.tasks.worker import task

@task("double")
def double(ctx, given):
    return 2 * given["n"]
"""


class Secured:
    """The broker, and the settings with which each principal connects in one way."""

    def __init__(self, folder: Path, processes: Processes) -> None:
        self.authority = CertificateAuthority(folder / "certificates")
        self.broker = SecuredBroker(folder / "broker", self.authority, processes)
        self.tokens = TokenEndpoint()

    def settings(self, way: str, principal: str, plain: KafkaSettings) -> KafkaSettings:
        """Return `plain` with the address and credentials of a principal."""
        fields: dict[str, Any] = plain.model_dump()
        if way == "mtls":
            made = self.authority.issue(principal, password=PASSWORD)
            fields |= {
                "bootstrap_servers": self.broker.mtls_servers,
                "security_protocol": "ssl",
                "ssl_ca_location": str(self.authority.file),
                "librdkafka": {
                    "ssl.certificate.location": str(made.certificate),
                    "ssl.key.location": str(made.key),
                    "ssl.key.password": PASSWORD,
                },
            }
        elif way == "oauth":
            fields |= {
                "bootstrap_servers": self.broker.oauth_servers,
                "security_protocol": "sasl_plaintext",
                "sasl_mechanism": "oauthbearer",
                "librdkafka": self.tokens.options(principal),
            }
        else:
            fields |= {
                "bootstrap_servers": self.broker.password_servers,
                "security_protocol": "sasl_ssl",
                "sasl_mechanism": "plain",
                "sasl_username": principal,
                "sasl_password": PASSWORD,
                "ssl_ca_location": str(self.authority.file),
            }
        return KafkaSettings.model_validate(fields)

    def apply_recipes(self, prefix: str, suffix: str = "") -> int:
        """Add the ACLs of the document for a topic prefix; return their number.

        `suffix`: of the principals' names.
        """
        recipes = _RECIPE.findall((ROOT / "docs" / "operate" / "security.md").read_text("utf-8"))
        for recipe in recipes:
            words = shlex.split(recipe.replace("sessionary.", f"{prefix}."))
            given = list(zip(words[::2], words[1::2], strict=True))
            principal = dict(given)["--allow-principal"].removeprefix("User:") + suffix
            prefixed = ("--resource-pattern-type", "prefixed") in given
            for option, name in given:
                if option in _RESOURCES:
                    for operation in [value for key, value in given if key == "--operation"]:
                        words_of = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", operation)
                        self.broker.allow(principal, _RESOURCES[option], name, words_of, prefixed=prefixed)
        return len(recipes)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    processes = Processes("secured")
    try:
        made = Secured(tmp_path_factory.mktemp("secured"), processes)
        yield made
        made.tokens.close()
    finally:
        processes.stop()


def _refusal_of(kafka: KafkaSettings, topic: str, patience_s: float = 120.0) -> KafkaError | None:
    """Return why a record of the principal is not written to a topic; None if it is."""
    reported: list[KafkaError | None] = []

    def keep_answer(error: KafkaError | None, _message: Message) -> None:
        reported.append(error)

    producer = Producer({**kafka.client_config(), "message.timeout.ms": round(patience_s * 1_000)})
    producer.produce(topic, b"x", on_delivery=keep_answer)
    producer.flush(2 * patience_s)
    return reported[0] if reported else None


def _start_processor(
    secured: Secured, way: str, plain: KafkaSettings, processes: Processes, suffix: str = "", token: str = TOKEN
) -> str:
    """Start a processor with its principal's rights, and an API with TLS; return the API's URL."""
    port, server = free_port(), secured.authority.issue(f"worker-{way}{suffix}")
    url = f"https://localhost:{port}"
    processor = environment(
        secured.settings(way, f"processor{suffix}", plain),
        instance="w1",
        api_port=str(port),
        api_advertised_url=url,
        api_tokens=f'{{"{token}": "{TENANT}"}}',
        api_tls_certificate=str(server.both),
        control_ca_location=str(secured.authority.file),
    )
    processes.start("sessionary.stream_processors", env=processor, name=f"processor-{way}{suffix}")
    return url


def _new_client(
    secured: Secured,
    agent: KafkaSettings,
    url: str,
    folder: Path,
    service_id: str = "billing",
    token: str = TOKEN,
    **callbacks: Any,
) -> SessionClient:
    fields = {
        **agent.model_dump(),
        "control_url": url,
        "control_ca_location": str(secured.authority.file),
        "api_token": token,
        "spool_dir": folder / "spool",
        "verdict_timeout_s": 180,
        "close_timeout_s": 180,
        "handle_sigterm": False,
    }
    settings = ProducerSettings.model_validate(fields)
    return SessionClient(tenant_id=TENANT, service_id=service_id, agent_id="agent-1", settings=settings, **callbacks)


@pytest.mark.parametrize("way", ["mtls", "oauth", "password"])
def test_every_role_works_with_the_rights_of_the_document(
    way: str, secured: Secured, clickhouse: ClickHouseSettings, processes: Processes, tmp_path: Path
) -> None:
    plain = new_pipeline(secured.broker.plain_servers)
    assert secured.apply_recipes(plain.topic_prefix) == 38
    url = _start_processor(secured, way, plain, processes)
    administrator = environment(secured.settings(way, "administrator", plain))
    applied = processes.run([COMMAND, "topics", "apply"], env=administrator, name=f"apply-{way}")
    assert applied.wait(180)
    assert applied.exit_code == 0, applied.log.read_text()
    sink = environment(secured.settings(way, "sink", plain), clickhouse, sink_idle_seconds="0.5")
    migrated = processes.run([COMMAND, "db", "migrate"], env=sink, name="migrate")
    assert migrated.wait(180)
    for kind in ("audit", "history"):
        processes.run([COMMAND, "serve", "sink", kind], env=sink, name=f"sink-{kind}-{way}")
    agent = secured.settings(way, "agent", plain)
    client = _new_client(secured, agent, url, tmp_path)
    session = client.create(user_id="u1", state={"n": 7}).start()
    session.pause("lunch")
    assert session.resume() == {"n": 7}  # so the processor judged it, and its API answered by TLS
    session.close()
    client.close()
    audits = [record for record in read_records(plain, plain.topics.audit) if isinstance(record, AuditRecord)]
    assert {audit.session_id for audit in audits} >= {session.session_id}
    count = f"SELECT count() FROM {clickhouse.clickhouse_database}.audit WHERE session_id = '{session.session_id}'"
    wait_until(lambda: int(run_sql(clickhouse, count)), 60, "rows of the audit sink")
    wait_until(lambda: int(run_sql(clickhouse, count.replace(".audit", ".history"))), 60, "rows of the history sink")
    forged = _refusal_of(agent, plain.topics.audit)
    assert forged is not None
    assert forged.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    observer = environment(secured.settings(way, "observer", plain))
    lag = processes.run([COMMAND, "lag", "--json"], env=observer, name=f"lag-{way}")
    assert lag.wait(180)
    assert lag.exit_code in (0, 1), lag.log.read_text()
    assert f"{plain.topic_prefix}.processor" in lag.log.read_text()
    assert count_quota_workers(secured.settings(way, "processor", plain)) == 0  # it may ask


def test_the_further_roles_work_with_the_rights_of_the_document(
    secured: Secured, clickhouse: ClickHouseSettings, processes: Processes, tmp_path: Path
) -> None:
    """Clean-up handlers, migrations, task workers, the other sinks, lag exporter and `doctor`."""
    way, plain = "password", new_pipeline(secured.broker.plain_servers)
    secured.apply_recipes(plain.topic_prefix)
    url = _start_processor(secured, way, plain, processes)
    sink = environment(secured.settings(way, "sink", plain), clickhouse, sink_idle_seconds="0.5")
    assert processes.run([COMMAND, "db", "migrate"], env=sink, name="migrate").wait(600)
    for kind in ("rejected", "batches"):
        processes.run([COMMAND, "serve", "sink", kind], env=sink, name=f"sink-{kind}-further")
    agent = secured.settings(way, "agent", plain)
    access = {"control_url": url, "control_ca_location": str(secured.authority.file), "api_token": TOKEN}
    (tmp_path / "app_tasks.py").write_text(_TASKS)
    worker = {**environment(agent, **access, spool_dir=str(tmp_path / "worker")), "PYTHONPATH": str(tmp_path)}
    options = ["--module", "app_tasks", "--tenant", TENANT, "--service", "billing"]
    processes.run([COMMAND, "serve", "task-worker", *options], env=worker, name="task-worker-secured")
    cleaned: list[str] = []
    arrived: list[Session] = []
    with (
        _new_client(secured, agent, url, tmp_path) as client,
        _new_client(secured, agent, url, tmp_path / "shop", "shop") as shop,
    ):
        client.on_cleanup(lambda request: cleaned.append(request.session_id))
        session = client.create(user_id="u1").start()
        task_id = session.start_task("double", {"n": 21}, timeout_s=120)
        wait_until(lambda: client.get_task_results(task_id).get("result") == 42, 90, "the task's result", pause_s=0.2)
        session.close()
        wait_until(lambda: session.session_id in cleaned, 60, "the clean-up request")
        client.accept_migrations(arrived.append)
        moving = shop.session(user_id="u1", state={"n": 7})
        assert moving.migration.move(to="billing", ttl_s=120.0).epoch == 2
        wait_until(lambda: [each.state for each in arrived] == [{"n": 7}], 60, "the session to arrive")
        assert _refusal_of(agent, plain.topics.events) is None  # written, and then refused by the processor
    for table in ("rejected", "batches"):
        count = f"SELECT count() FROM {clickhouse.clickhouse_database}.{table}"
        wait_until(lambda count=count: int(run_sql(clickhouse, count)), 60, f"rows of {table}")  # type: ignore[misc]
    observer = environment(secured.settings(way, "observer", plain), clickhouse, **access)
    port = free_port()
    processes.run([COMMAND, "serve", "lag-exporter", "--port", str(port)], env=observer, name="lag-exporter-secured")
    groups = [f'group="{plain.topic_prefix}.{name}"' for name in ("processor", f"task-workers.{TENANT}:billing")]
    wait_until(lambda: all(group in _metrics_at(port) for group in groups), 60, "both groups' lag", pause_s=0.2)

    def checks_done_well() -> set[str]:
        doctor = processes.run([COMMAND, "doctor", "--json"], env=observer, name="doctor-secured")
        assert doctor.wait(180)
        found = [json.loads(line) for line in doctor.log.read_text().splitlines() if line.startswith("{")]
        return {check["check"] for check in found if check["ok"]}

    for principal in ("observer", "sink"):
        checker = environment(secured.settings(way, principal, plain), clickhouse)
        check = processes.run([COMMAND, "integrity", "check"], env=checker, name=f"check-{principal}-secured")
        assert check.wait(180)
        assert "authoriz" not in check.log.read_text().lower(), check.log.read_text()
        assert check.exit_code in (0, 1), check.log.read_text()

    # On a busy machine a part may answer too late for its check, or lag for a while.
    wanted = {"broker", "topics", "migrations", "processor"}
    wanted |= {f"lag {role}" for role in ("processor", "sink.rejected", "sink.batches")}
    wait_until(lambda: wanted <= checks_done_well(), 120, f"{wanted} are well")


def test_two_services_with_a_prefix_each_do_not_reach_each_other(
    secured: Secured, processes: Processes, tmp_path: Path
) -> None:
    """They share a broker, and the names of tenant and service; tokens and principals differ."""
    way, pipelines = "mtls", {name: new_pipeline(secured.broker.plain_servers) for name in ("-a", "-b")}
    urls: dict[str, str] = {}
    sessions: dict[str, str] = {}
    for name, plain in pipelines.items():
        secured.apply_recipes(plain.topic_prefix, name)
        urls[name] = _start_processor(secured, way, plain, processes, name, f"token{name}")
    for name, plain in pipelines.items():
        agent = secured.settings(way, f"agent{name}", plain)
        with _new_client(secured, agent, urls[name], tmp_path / name, token=f"token{name}") as client:
            with client.session(user_id="u1", state={"of": name}) as session:
                sessions[name] = session.session_id
                assert json.loads(session.sync().state_json) == {"of": name}
            client.flush(60)
    for name, other in (("-a", "-b"), ("-b", "-a")):
        foreign = pipelines[other]
        intruder = secured.settings(way, f"agent{name}", foreign)
        reported: list[Exception] = []
        client = _new_client(
            secured, intruder, urls[other], tmp_path / "intruder" / name, token=f"token{name}", on_error=reported.append
        )
        client.create(user_id="u1")
        with pytest.raises(AuthenticationFailed, match="may not write to"):
            client.flush(60)
        assert client.backlog.spool_events == client.backlog.events == 1  # kept, and told
        with pytest.raises(AuthenticationFailed, match="token"):
            client.attach(sessions[other])
        client.close(5.0)
        wait_until(lambda: any(isinstance(each, AuthenticationFailed) for each in reported), 60, "the error")  # noqa: B023
        for role in ("agent", "processor"):
            for topic in foreign.topics:
                refusal = _refusal_of(secured.settings(way, f"{role}{name}", foreign), topic)
                assert refusal is not None, (role, topic)
                assert refusal.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED, (role, topic)
    for name, plain in pipelines.items():
        keys = {stored.key for stored in read_topic(plain, plain.topics.events) if stored.key is not None}
        assert len(keys) == 1, f"sessions of {name}"


def test_a_replay_needs_the_right_to_read_the_events_and_a_tenant_s_token_no_further_role(
    secured: Secured, processes: Processes, tmp_path: Path
) -> None:
    way, plain = "password", new_pipeline(secured.broker.plain_servers)
    secured.apply_recipes(plain.topic_prefix)
    url = _start_processor(secured, way, plain, processes)
    agent, replayer = (secured.settings(way, name, plain) for name in ("agent", "replayer"))
    with _new_client(secured, agent, url, tmp_path) as client:
        with client.session(user_id="u1", state={"n": 1}) as session:
            assert recorded_work(session) == ["looked"]
        with pytest.raises(AuthenticationFailed, match=r"a replay may not read .*: its principal needs Read on it"):
            client.replay(session).__enter__()
    with _new_client(secured, replayer, url, tmp_path / "replayer") as reader:
        with reader.replay(session.session_id) as replay, replay.session() as again:
            assert recorded_work(again) == ["looked"]
        assert (replay.reproduces, replay.counts.served, replay.counts.executed) == (True, 1, 0)
        settings = reader.core.settings.model_copy(update={"spool_dir": tmp_path / "other"})
    with (
        SessionClient(tenant_id="globex", service_id="billing", agent_id="agent-1", settings=settings) as stranger,
        pytest.raises(SessionLost, match="is not known"),
    ):
        stranger.replay(session.session_id).__enter__()


@tool(effect="read")
def look() -> str:
    return "looked"


def recorded_work(session: Session) -> list[str]:
    session.update_state({"n": 2})
    return [look()]


def _metrics_at(port: int) -> str:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""


def test_without_a_certificate_no_client_gets_in(secured: Secured) -> None:
    fields = {"bootstrap_servers": secured.broker.mtls_servers, "security_protocol": "ssl"}
    kafka = KafkaSettings.model_validate({**fields, "ssl_ca_location": str(secured.authority.file)})
    refusal = _refusal_of(kafka, "any", patience_s=10.0)
    assert refusal is not None
    assert refusal.code() in (KafkaError._MSG_TIMED_OUT, KafkaError._SSL, KafkaError._ALL_BROKERS_DOWN)
