"""Each role of the compose file, started with exactly its environment and command."""

import json
import os
import re
import secrets
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from sessionary.infra.clickhouse_client import ClickHouseClient
from sessionary.infra.local.kafka.node import KAFKA_VERSION
from sessionary.infra.local.ports import LOOPBACK, free_port
from sessionary.schemas.settings import ClickHouseSettings
from tests.integration.pipeline_rig import COMMAND
from tests.style.project import ROOT
from tests.support.processes import Processes
from tests.support.waiting import wait_until

_FOLDER = ROOT / "infra" / "compose"
_KEY = "secret-of-server-roles-in-a-compose-file"
_GIVEN = {
    "CLICKHOUSE_PASSWORD": "sesame",
    "READER_TOKEN": "token-r",
    "OPERATOR_TOKEN": "token-o",
    "SIGNING_KEY": _KEY,
}
_VARIABLE = re.compile(r"\$\{(\w+)(?::-(\w*)|:\?[^}]*)?\}")
_API, _METRICS = 8600, 9100
_KEYS = "SESSIONARY_SIGNING_KEYS"
_SECRETS = ("SESSIONARY_CLICKHOUSE_PASSWORD", "SESSIONARY_API_TOKENS", "SESSIONARY_OPERATOR_TOKEN", _KEYS)


def read_services(values: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return the services, with the variables of `.env` filled in."""
    text = (_FOLDER / "docker-compose.yml").read_text("utf-8")
    filled = _VARIABLE.sub(lambda found: values.get(found[1]) or found[2] or "", text)
    services: dict[str, dict[str, Any]] = yaml.safe_load(filled)["services"]
    return services


def read_example() -> dict[str, str]:
    """Return the variables of `example.env`."""
    lines = (_FOLDER / "example.env").read_text("utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def roles(services: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the services that go on running, and are ours."""
    return {name: each for name, each in services.items() if each.get("command", [""])[0] == "serve"}


SERVICES = read_services(_GIVEN)


def test_the_example_names_each_variable_and_what_must_be_filled_in_is_empty() -> None:
    found = _VARIABLE.finditer((_FOLDER / "docker-compose.yml").read_text("utf-8"))
    required = {match[1]: ":?" in match[0] for match in found}
    assert {name: not value for name, value in read_example().items()} == required


def test_each_role_has_its_own_secrets_only() -> None:
    tokens, password = "SESSIONARY_API_TOKENS", "SESSIONARY_CLICKHOUSE_PASSWORD"
    found = {name: {s for s in _SECRETS if s in each.get("environment", {})} for name, each in SERVICES.items()}
    sinks = {name for name in SERVICES if name.startswith("sink-")}
    assert len(sinks) == 4
    wanted = {name: {password} if name in {*sinks, "lag-exporter", "tables"} else set() for name in SERVICES}
    wanted |= {"processor": {tokens, _KEYS}, "quotas": {tokens, _KEYS}, "cli": {password, "SESSIONARY_OPERATOR_TOKEN"}}
    assert found == wanted
    callers = json.loads(SERVICES["processor"]["environment"][tokens])
    assert json.loads(SERVICES["quotas"]["environment"][_KEYS]) == {"k1": _KEY}
    assert callers == {"token-r": "acme", "token-o": {"principal": "on-call", "roles": ["operator"]}}


def test_each_role_has_a_name_a_check_and_a_published_port_of_its_own() -> None:
    published = [port for each in SERVICES.values() for port in each.get("ports", [])]
    assert len(published) == len({port.rsplit(":", 1)[0] for port in published}) == len(roles(SERVICES)) + 2
    assert all(port.startswith("127.0.0.1:") for port in published)
    for name, role in roles(SERVICES).items():
        assert "healthcheck" in role, name
        assert "SESSIONARY_INSTANCE" in role["environment"] or name == "lag-exporter", name
    for name in ("processor", "quotas"):
        folder = SERVICES[name]["environment"]["SESSIONARY_STATE_DIR"]
        assert f"{name}:{folder}" in SERVICES[name]["volumes"]
        assert f"--owner 65534 --group 65534 {folder}" in (_FOLDER / "Dockerfile").read_text("utf-8")


def test_programs_on_the_host_and_containers_find_the_broker_at_addresses_of_their_own() -> None:
    kafka = SERVICES["kafka"]["environment"]
    advertised = dict(each.split("://") for each in kafka["KAFKA_ADVERTISED_LISTENERS"].split(","))
    assert set(advertised) | {"CONTROLLER"} == {each.split("://")[0] for each in kafka["KAFKA_LISTENERS"].split(",")}
    assert advertised["HOST"] == "127.0.0.1:9092"
    assert SERVICES["kafka"]["ports"] == ["127.0.0.1:9092:9092"]
    named = {each["environment"].get("SESSIONARY_BOOTSTRAP_SERVERS") for each in roles(SERVICES).values()}
    assert named == {advertised["INTERNAL"]}


def test_the_images_are_the_versions_that_tests_run(clickhouse: ClickHouseSettings) -> None:
    assert SERVICES["kafka"]["image"] == f"apache/kafka:{KAFKA_VERSION}"
    served = ClickHouseClient(clickhouse).server_version()
    assert SERVICES["clickhouse"]["image"].rpartition(":")[2] == ".".join(served.split(".")[:2])


class ComposedStack:
    """The services of the compose file as processes here: each with its environment, and no other.

    Names of hosts become loopback, ports free ones, and folders those of a test. A prefix and a
    database of its own are added, because the servers are shared.
    """

    def __init__(self, bootstrap: str, clickhouse: ClickHouseSettings, processes: Processes, folder: Path) -> None:
        self._ports = {name: free_port() for name in SERVICES}
        self._processes, self._folder = processes, folder
        self._texts = {"kafka:29092": bootstrap, "http://clickhouse:8123": clickhouse.clickhouse_url}
        self._texts |= {"0.0.0.0": LOOPBACK, "/etc/sessionary/limits": str(_FOLDER / "limits")}
        self._texts |= {f"http://{name}:{_API}": f"http://{LOOPBACK}:{port}" for name, port in self._ports.items()}
        self._own = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "SESSIONARY_TOPIC_PREFIX": f"t{secrets.token_hex(5)}",
            "SESSIONARY_CLICKHOUSE_DATABASE": clickhouse.clickhouse_database,
        }

    def environment(self, name: str) -> dict[str, str]:
        """Return a service's environment."""
        found: dict[str, str] = dict(self._own)
        for variable, value in SERVICES[name]["environment"].items():
            text = str(self._ports[name] if variable in ("SESSIONARY_API_PORT", "SESSIONARY_METRICS_PORT") else value)
            for former, ours in {**self._texts, "/var/lib/sessionary": str(self._folder / name)}.items():
                text = text.replace(former, ours)
            found[variable] = text
        return found

    def run(self, name: str, *words: str) -> str:
        """Run a service's command, or another one in its place, to its end; return its output."""
        argv = [COMMAND, *(words or SERVICES[name]["command"])]
        env = self.environment(name)
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}"
        return done.stdout

    def start(self, name: str) -> None:
        """Start a role."""
        (self._folder / name).mkdir()
        argv = ["env", "-i", *(f"{key}={value}" for key, value in self.environment(name).items()), COMMAND]
        self._processes.run([*argv, *SERVICES[name]["command"]], name=name)

    def is_healthy(self, name: str) -> bool:
        """Run a role's health check."""
        words = [str(word) for word in SERVICES[name]["healthcheck"]["test"]]
        assert words[:3] == ["CMD", "python", "-c"]
        port = str(_API if "SESSIONARY_API_PORT" in SERVICES[name]["environment"] else _METRICS)
        check = words[3].replace(f":{port}/", f":{self._ports[name]}/")
        return (
            subprocess.run([sys.executable, "-c", check], capture_output=True, timeout=60, check=False).returncode == 0
        )


def test_each_role_is_healthy_with_exactly_its_environment_and_a_person_can_ask(
    bootstrap_servers: str, clickhouse: ClickHouseSettings, processes: Processes, tmp_path: Path
) -> None:
    stack = ComposedStack(bootstrap_servers, clickhouse, processes, tmp_path)
    assert stack.run("topics").count("created with 4 partitions") == 11
    stack.run("tables")
    for name in roles(SERVICES):
        stack.start(name)
    for name in roles(SERVICES):
        wait_until(lambda name=name: stack.is_healthy(name), 120, f"{name} to be healthy", pause_s=0.3)  # type: ignore[misc]
    assert all(child.exit_code is None for child in processes.started)
    stack.run("cli", "rules", "activate", "--quotas")
    listed = [json.loads(line) for line in stack.run("cli", "partition", "list", "--json").splitlines()]
    assert [row["state"] for row in listed] == ["open"] * 4, listed
    stack.run("cli")
