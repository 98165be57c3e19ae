"""The local stack, as far as it needs no server."""

import json
import random
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry

from sessionary.infra.cli.app import run
from sessionary.infra.cli.commands.up import activate_newest_rules
from sessionary.infra.environment import read_environment, tenant_tokens, write_environment
from sessionary.infra.local.errors import BrokerCountDiffers, DiskFull, PortTaken
from sessionary.infra.local.ports import is_free
from sessionary.infra.local.supervisor import Part
from sessionary.infra.metrics_targets import TARGETS_FILE
from sessionary.infra.stack import Ports, Stack, api_ready, inherited_variables
from sessionary.schemas.errors import SettingsError
from sessionary.schemas.rules import NEWEST_RULES
from sessionary.sinks.metrics import serve_pages
from sessionary.stream_processors.access import parse_tokens
from tests.core.infra.fake_control_api import serve_fake_api


def test_parts_take_the_shell_s_proxies_but_no_address_of_another_stack() -> None:
    shell = {"HTTPS_PROXY": "p", "HOME": "/h", "SESSIONARY_LOG_LEVEL": "DEBUG", "SESSIONARY_STORE": "rocksdb"}
    shell["SESSIONARY_LOG_FORMAT"] = "json"
    assert inherited_variables({**shell, "SESSIONARY_TOPIC_PREFIX": "x", "SESSIONARY_SASL_USERNAME": "u"}) == shell


def test_a_stack_does_not_start_if_another_process_holds_its_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sessionary.infra.stack._PORT_WAIT_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as held:
        stack = Stack(tmp_path, ports=Ports(broker=held.getsockname()[1]))
        with pytest.raises(PortTaken, match="--port-broker"):
            stack.start()
        stack.stop()
    assert read_environment(tmp_path) == {}


def test_a_stack_does_not_start_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _folder: SimpleNamespace(free=3 << 20, total=90 << 20))
    stack = Stack(tmp_path / "data")
    with pytest.raises(DiskFull, match=r"3 MiB of 90 MiB are free on the disk of .*/data; .* 512 MiB: .*--data"):
        stack.start()
    assert read_environment(tmp_path / "data") == {}


def test_a_stack_has_an_operator_s_token_and_keeps_its_tokens(tmp_path: Path) -> None:
    former = {"SESSIONARY_API_TOKENS": '{"of-acme": "acme"}'}  # of a release without operators
    write_environment(tmp_path, former)
    first = Stack(tmp_path).environ
    callers = parse_tokens(first["SESSIONARY_API_TOKENS"])
    assert callers.pop(first["SESSIONARY_OPERATOR_TOKEN"]).roles == {"operator"}
    assert callers == parse_tokens(former["SESSIONARY_API_TOKENS"])
    assert tenant_tokens(first) == {"acme": "of-acme"}
    write_environment(tmp_path, first)
    again = Stack(tmp_path).environ
    for name in ("SESSIONARY_API_TOKENS", "SESSIONARY_OPERATOR_TOKEN", "SESSIONARY_CLICKHOUSE_PASSWORD"):
        assert again[name] == first[name]


def test_each_folder_has_a_clickhouse_password_of_its_own(tmp_path: Path) -> None:
    passwords = {Stack(tmp_path / name).environ["SESSIONARY_CLICKHOUSE_PASSWORD"] for name in ("one", "two")}
    assert len(passwords) == 2
    assert min(map(len, passwords)) >= 32


def test_only_a_new_stack_activates_rules_by_itself(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with serve_fake_api() as api:
        api.answers = {"/v1/rules": (200, {"partitions": [], "workers": []})}
        port = int(api.url.rpartition(":")[2])
        stack = Stack(tmp_path / "data", ports=Ports(api=port))
        activate_newest_rules(stack)
        assert [(asked.method, asked.path) for asked in api.asked] == [("POST", "/v1/rules")]
        assert api.asked[0].authorization == f"Bearer {stack.environ['SESSIONARY_OPERATOR_TOKEN']}"
        assert "the stack is new" in capfd.readouterr().err
        write_environment(tmp_path / "data", stack.environ)
        activate_newest_rules(Stack(tmp_path / "data", ports=Ports(api=port)))
        assert len(api.asked) == 1


def limits_file(folder: Path, text: str = '{"default": {"concurrent_runs": 2}}') -> Path:
    path = folder / "quotas.json"
    path.write_text(text)
    return path


def test_runs_of_a_new_stack_with_the_role_quotas_ask_for_quotas(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with serve_fake_api() as api:
        api.answers = {"/v1/rules": (200, {"partitions": [], "workers": []})}
        ports = Ports(api=int(api.url.rpartition(":")[2]))
        activate_newest_rules(Stack(tmp_path / "data", ports=ports, quotas_file=limits_file(tmp_path)))
        assert [json.loads(asked.body) for asked in api.asked] == [{"version": NEWEST_RULES.version, "quotas": True}]
        assert "and runs ask for quotas: the stack is new" in capfd.readouterr().err


def test_sessions_of_a_new_stack_ask_and_tokens_count_if_the_file_limits_them(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    limits = limits_file(tmp_path, '{"tenants": {"acme": {"live_sessions": 2, "tokens": 5}}}')
    with serve_fake_api() as api:
        api.answers = {"/v1/rules": (200, {"partitions": [], "workers": []})}
        ports = Ports(api=int(api.url.rpartition(":")[2]))
        activate_newest_rules(Stack(tmp_path / "data", ports=ports, quotas_file=limits))
        wanted = {"version": NEWEST_RULES.version, "quotas": True, "session_quotas": True, "token_quotas": True}
        assert [json.loads(asked.body) for asked in api.asked] == [wanted]
        assert (
            "and runs and sessions ask for quotas, and tokens count for them: the stack is new"
            in capfd.readouterr().err
        )


def test_a_file_of_limits_that_cannot_be_used_is_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    wrong = limits_file(tmp_path, "[]")
    assert run(["up", "--data", str(tmp_path / "data"), "--quotas", str(wrong)]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"sessionary: SESSIONARY_QUOTAS_FILE: {wrong}: use {{")
    assert line.endswith("; name a file of limits by --quotas")


def test_a_stack_of_three_brokers_is_known_by_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sessionary.infra.stack.Supervisor.start", lambda _supervisor: None)
    with Stack(tmp_path, brokers=3) as first:
        servers = first.environ["SESSIONARY_BOOTSTRAP_SERVERS"]
    assert len(servers.split(",")) == 3
    assert Stack(tmp_path).environ["SESSIONARY_BOOTSTRAP_SERVERS"] == servers
    with pytest.raises(BrokerCountDiffers, match="use another folder"):
        Stack(tmp_path, brokers=1)


def hold_third_port() -> socket.socket:
    """Hold a port of which the two before it are free.

    The kernel and `free_ports` choose ports below these, so no process takes one of the two.
    """
    while True:
        first = random.randrange(61_000, 65_000)
        if all(map(is_free, range(first, first + 3))):
            return socket.create_server(("127.0.0.1", first + 2))


def test_each_of_three_ports_is_looked_at_before_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sessionary.infra.stack._PORT_WAIT_S", 0.0)
    with hold_third_port() as held:
        taken = held.getsockname()[1]
        for first, port in ((taken - 2, taken), (65_534, 65_536)):
            stack = Stack(tmp_path, brokers=3, ports=Ports(broker=first))
            with ExitStack() as ended:
                ended.callback(stack.stop)
                with pytest.raises(PortTaken, match=f"{port}.*--port-broker"):
                    stack.start()
    assert len(Stack(tmp_path, brokers=1).environ["SESSIONARY_BOOTSTRAP_SERVERS"].split(",")) == 1


@pytest.mark.parametrize("end", ["", "/"])
def test_a_processor_whose_address_ends_with_a_slash_is_ready(end: str) -> None:
    with serve_fake_api() as api:
        api.answers = {"/readyz": (200, {})}
        assert api_ready(f"{api.url}{end}")


def test_another_server_than_a_processor_is_not_ready() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as thread:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4_096)
                connection.sendall(b"\x15\x03\x03 no HTTP\r\n")

        answering = thread.submit(answer)
        assert not api_ready(f"http://127.0.0.1:{server.getsockname()[1]}")
        answering.result()


MEASURED_PARTS = ["sink-audit", "sink-history", "sink-rejected", "sink-batches", "lag-exporter"]


def _started_targets(
    data: Path, ports: Ports | None = None, *, lag_exporter: bool = True
) -> dict[str, tuple[str, str]]:
    """Start a stack without processes; return job and address of each target for Prometheus."""
    stack = Stack(data, ports=ports, lag_exporter=lag_exporter)
    try:
        stack.start()
        groups = json.loads((data / TARGETS_FILE).read_text())
    finally:
        stack.stop()
    return {group["labels"]["instance"]: (group["labels"]["job"], *group["targets"]) for group in groups}


@pytest.fixture
def _no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sessionary.infra.stack.Supervisor.start", lambda _supervisor: None)
    monkeypatch.setattr("sessionary.infra.stack._PORT_WAIT_S", 0.0)


@pytest.mark.usefixtures("_no_processes")
def test_prometheus_is_given_each_role_s_port_and_the_folder_keeps_them(tmp_path: Path) -> None:
    targets = _started_targets(tmp_path)
    api = read_environment(tmp_path)["SESSIONARY_CONTROL_URL"].removeprefix("http://")
    assert list(targets) == ["processor", *MEASURED_PARTS]
    assert targets["processor"] == ("sessionary-processor", api)
    assert {targets[name][0] for name in MEASURED_PARTS[:4]} == {"sessionary-sink"}
    assert targets["lag-exporter"][0] == "sessionary-lag"
    assert len({address for _, address in targets.values()}) == 6
    assert _started_targets(tmp_path) == targets


@pytest.mark.usefixtures("_no_processes")
def test_a_stack_can_leave_the_lag_exporter_out(tmp_path: Path) -> None:
    assert list(_started_targets(tmp_path, lag_exporter=False)) == ["processor", *MEASURED_PARTS[:4]]


@pytest.mark.usefixtures("_no_processes")
def test_the_folder_keeps_the_role_quotas_with_its_file_and_port(tmp_path: Path) -> None:
    limits, data = limits_file(tmp_path), tmp_path / "data"
    with Stack(data, quotas_file=limits) as stack:
        assert stack.has_quotas
        known = read_environment(data)
        job, address = {target.part: (target.role, target.port) for target in stack.targets}["quotas"]
    assert (job, f"http://127.0.0.1:{address}") == ("quotas", known["SESSIONARY_QUOTAS_URL"])
    assert (known["SESSIONARY_QUOTAS_FILE"], known["SESSIONARY_QUOTAS"]) == (str(limits), "true")
    assert _started_targets(data)["quotas"] == ("sessionary-quotas", f"127.0.0.1:{address}")
    limits.unlink()
    with pytest.raises(SettingsError, match=r"quotas\.json: No such file .*; name a file of limits by --quotas$"):
        Stack(data)


@pytest.mark.usefixtures("_no_processes")
def test_chosen_metrics_ports_win_over_the_folder_s_and_a_taken_one_is_named(tmp_path: Path) -> None:
    _started_targets(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as held:
        taken = held.getsockname()[1]
        with pytest.raises(PortTaken, match=f"{taken}.*sink-audit.*--port-metrics"):
            _started_targets(tmp_path, Ports(metrics=taken))
    with pytest.raises(PortTaken, match=r"65536.*sink-history.*--port-metrics"):
        _started_targets(tmp_path, Ports(metrics=65_535))


def test_a_sink_that_waits_for_an_operator_does_not_keep_the_stack_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts: dict[str, Part] = {}
    monkeypatch.setattr(
        "sessionary.infra.stack.Supervisor",
        lambda made, _on_change, **_options: parts.update({part.name: part for part in made}),
    )
    stack = Stack(tmp_path)
    (port,) = (target.port for target in stack.targets if target.part == "sink-audit")
    sink = parts["sink-audit"]
    assert sink.ready is not None
    assert sink.env is not None
    assert (sink.env["SESSIONARY_METRICS_PORT"], list(sink.after)) == (str(port), ["broker", "clickhouse"])
    assert not sink.ready()
    blocked = (True, "blocked: no_table"), (False, "partition 0 stands")
    with serve_pages(("127.0.0.1", port), CollectorRegistry(), lambda: blocked[0], lambda: blocked[1]):
        assert sink.ready()
    assert list(parts["lag-exporter"].after) == ["broker", "clickhouse"]
    assert "quotas" not in parts


def test_the_role_quotas_is_ready_as_a_processor_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts: dict[str, Part] = {}
    monkeypatch.setattr(
        "sessionary.infra.stack.Supervisor",
        lambda made, _on_change, **_options: parts.update({part.name: part for part in made}),
    )
    limits = limits_file(tmp_path)
    with serve_fake_api() as api:
        first = int(api.url.rpartition(":")[2]) - len(MEASURED_PARTS)
        Stack(tmp_path / "data", quotas_file=limits, ports=Ports(metrics=first))
        part = parts["quotas"]
        assert part.argv[-2:] == ["serve", "quotas"]
        assert part.env is not None
        assert part.env["SESSIONARY_QUOTAS_FILE"] == str(limits)
        assert part.env["SESSIONARY_API_PORT"] == api.url.rpartition(":")[2]
        assert (list(part.after), part.log_path.name) == (["broker"], "quotas.log")
        assert part.ready is not None
        assert not part.ready()
        api.answers = {"/readyz": (200, {})}
        assert part.ready()
