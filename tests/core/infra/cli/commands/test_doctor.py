"""`sessionary doctor` without any server but a fake processor."""

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry

from sessionary.infra import worker_findings
from sessionary.infra.cli.app import run
from sessionary.infra.cli.commands import doctor
from sessionary.infra.cli.commands.doctor import Check, find_sink_faults, run_checks
from sessionary.infra.lag.lag_monitor import LagReport
from sessionary.infra.lag.lag_tracker import GroupState, PartitionLag, PartitionState, pipeline_groups
from sessionary.infra.local.ports import LOOPBACK, free_port, free_ports
from sessionary.schemas.settings import ClickHouseSettings, KafkaSettings
from sessionary.sinks.integrity import landed_ends, topic_counts
from sessionary.sinks.integrity.topic_counts import TopicComparison
from sessionary.sinks.metrics import Readiness, serve_pages
from sessionary.sinks.settings import SinkGroupSettings
from sessionary.stream_processors.core_build import core_build, interpreter_build
from tests.core.infra.fake_control_api import HALTED, FakeControlApi, partition, serve_fake_api


class _SilentRoles:
    """In place of a monitor: groups of a pipeline of which none has a member."""

    def __init__(self, settings: KafkaSettings, _window_s: float, _idle_s: float) -> None:
        known = [
            f"{settings.topic_prefix}.{name}"
            for name in ("task-workers.acme:b", "cleanup.acme:b", "quotas", "sink.audit.copy")
        ]
        self._groups = pipeline_groups(settings.topic_prefix, known)

    def take_report(self, _read_s: float = 0.0) -> LagReport:
        places = ((group, GroupState.EMPTY, topic, 0) for group, topic in self._groups.items())
        lags = (PartitionLag(*place, PartitionState.STOP, lag=7, lag_s=99.0) for place in places)
        return LagReport(0.0, 0.0, tuple(lags))

    def close(self) -> None:
        """Do nothing."""


def test_doctor_finds_each_role_that_is_away_and_names_a_command_that_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sessionary.infra.lag.lag_monitor.LagMonitor", _SilentRoles)
    monkeypatch.setattr(doctor, "_OBSERVED_S", 0.0)
    found = {check.check: check for check in doctor._run_lag_checks(SinkGroupSettings(topic_prefix="p"), 0.0)}
    roles = ["processor", "sink.audit", "sink.history", "sink.rejected", "sink.batches", "quotas", "sink.audit.copy"]
    assert list(found) == [f"lag {role}" for role in roles], "a service that is off is no fault of the pipeline"
    assert not any(check.ok for check in found.values())
    commands = {
        role: check.advice.partition(": ")[2].partition(",")[0]
        for role, check in zip(roles, found.values(), strict=True)
    }
    assert commands["processor"] == "sessionary serve processor"
    assert commands["quotas"] == "sessionary serve quotas"
    assert commands["sink.audit"] == "sessionary serve sink audit"
    assert commands["sink.audit.copy"] == "SESSIONARY_PIPELINE=copy sessionary serve sink audit"


class _QuietRoles(_SilentRoles):
    """The same groups, with nothing to read."""

    def take_report(self, _read_s: float = 0.0) -> LagReport:
        quiet = (lag._replace(state=PartitionState.OK, lag=0, lag_s=0.0) for lag in super().take_report().partitions)
        return LagReport(0.0, 0.0, tuple(quiet))


def test_a_role_without_a_member_fails_on_a_quiet_pipeline_but_a_retired_group_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sessionary.infra.lag.lag_monitor.LagMonitor", _QuietRoles)

    def missing(**settings: str) -> list[str]:
        checks = doctor._run_lag_checks(SinkGroupSettings(topic_prefix="p", **settings), 0.0)
        return [check.check.removeprefix("lag ") for check in checks if not check.ok and "no member" in check.found]

    roles = ["processor", "sink.audit", "sink.history", "sink.rejected", "sink.batches"]
    assert missing() == roles
    assert missing(pipeline="copy") == ["processor", "sink.audit.copy"], "the pipeline of this doctor"


def test_doctor_says_what_is_wrong_and_what_to_do(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SESSIONARY_SPOOL_DIR", str(tmp_path))  # no client has run there
    assert run(["doctor", "--json"]) == 1
    out, err = capfd.readouterr()
    found = {check["check"]: check for check in map(json.loads, out.splitlines())}
    assert found["versions"]["ok"]
    assert f"built with {interpreter_build()}; {core_build()} core" in found["versions"]["found"]
    for name in ("broker", "clickhouse", "processor"):
        assert not found[name]["ok"]
        assert found[name]["advice"]
    asked = {"versions", "driver", "variables", "broker", "clickhouse", "processor"}
    assert set(found) == asked, "nothing more is asked of who is away"
    assert "broker" in err


def test_doctor_warns_of_a_variable_that_is_nearly_a_setting() -> None:
    near = doctor._check_variables({"SESSIONARY_BOOTSTRAP_SERVER": "kafka:9092", "PATH": "/bin"})
    assert (near.ok, near.advice) == (True, "rename or unset it")
    assert near.found.startswith("SESSIONARY_BOOTSTRAP_SERVER is no setting")
    assert near.found.endswith("did you mean SESSIONARY_BOOTSTRAP_SERVERS?")
    assert doctor._check_variables({"SESSIONARY_BOOTSTRAP_SERVERS": "kafka:9092"}).advice == ""


def test_doctor_looks_at_the_disk_of_a_stack_before_its_first_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _folder: SimpleNamespace(free=3 << 20, total=90 << 20))
    assert run(["doctor", "--data", str(tmp_path / "new"), "--json"]) == 1
    found = {check["check"]: check for check in map(json.loads, capfd.readouterr().out.splitlines())}
    assert not found["disks"]["ok"]
    assert str(tmp_path / "new") in found["disks"]["found"]
    assert found["disks"]["advice"].startswith("make room: du ")


def quota_checks(
    quota_workers: int | None, role: FakeControlApi, *, is_on: bool = True, of_sessions: bool = False
) -> dict[str, Check]:
    """Return doctor's checks of quotas; `role` answers as a worker of that role."""
    settings = {"SESSIONARY_SIGNING_KEYS": "k1 1a2b3c4d"}
    reported = {"instance": "w1", "url": "http://w1:8600", "newest": 2, "detail": None, "settings": settings}
    with serve_fake_api() as api:
        api.answers = {
            "/v1/partitions": (200, {"partitions": [partition(0)]}),
            "/v1/rules": (
                200,
                {
                    "partitions": [{"partition": 0, "rules": 2, "quotas": is_on, "session_quotas": of_sessions}],
                    "workers": [reported],
                    "quota_workers": quota_workers,
                },
            ),
        }
        environ = {
            "SESSIONARY_CONTROL_URL": api.url,
            "SESSIONARY_QUOTAS_URL": role.url,
            "SESSIONARY_OPERATOR_TOKEN": "op",
            "SESSIONARY_BOOTSTRAP_SERVERS": f"127.0.0.1:{free_port()}",
            "SESSIONARY_CLICKHOUSE_URL": f"http://127.0.0.1:{free_port()}",
        }
        return {check.check: check for check in run_checks(environ) if check.check.startswith("quotas")}


def test_doctor_says_that_runs_wait_for_ever_without_a_worker_of_quotas() -> None:
    with serve_fake_api() as role:
        role.answers = {"/v1/partitions": (200, {"partitions": [partition(0)]})}
        found = quota_checks(2, role)["quotas"]
        assert found == Check("quotas", ok=True, found="runs ask for them; workers: 2")
        found = quota_checks(0, role)["quotas"]
        assert not found.ok
        assert "no worker of that role runs: further runs wait for ever" in found.found
        assert "SESSIONARY_QUOTAS_FILE=quotas.json sessionary serve quotas" in found.advice
        unknown = quota_checks(None, role)["quotas"]
        assert (unknown.ok, unknown.advice) == (False, "read the log of sessionary serve processor")
        assert "quotas" not in quota_checks(0, role, is_on=False)
        found = quota_checks(0, role, is_on=False, of_sessions=True)["quotas"]
        assert "no worker of that role runs: further sessions wait for ever" in found.found
        found = quota_checks(1, role, of_sessions=True)["quotas"]
        assert found == Check("quotas", ok=True, found="runs and sessions ask for them; workers: 1")


def test_doctor_finds_a_halted_partition_of_quotas_and_says_whom_to_ask() -> None:
    with serve_fake_api() as role:
        role.answers = {"/v1/partitions": (200, {"partitions": [partition(0), HALTED]})}
        found = quota_checks(1, role)["quotas partitions"]
        assert not found.ok
        assert "partition 1 is halted" in found.found
        assert f"run: SESSIONARY_CONTROL_URL={role.url} sessionary partition retry 1;" in found.advice
        role.answers = {"/v1/partitions": (200, {"partitions": [partition(0), partition(1, "unassigned")]})}
        found = quota_checks(1, role)["quotas partitions"]
        assert (found.ok, found.advice.partition(",")[0]) == (False, "start sessionary serve quotas")
        role.answers = {"/v1/partitions": (200, {"partitions": [partition(0)]})}
        assert quota_checks(1, role)["quotas partitions"].ok
        alike = {"instance": "q1", "url": "http://q1:8600", "newest": 2, "detail": None, "settings": {"A": 1}}
        role.answers["/v1/rules"] = (200, {"partitions": [], "workers": [alike, {**alike, "instance": "q2"}]})
        assert quota_checks(1, role)["quotas workers"].ok
        other = {**alike, "instance": "q2", "settings": {"A": 2}}
        role.answers["/v1/rules"] = (200, {"partitions": [], "workers": [alike, other]})
        found = quota_checks(1, role)["quotas workers"]
        assert (found.ok, found.found) == (False, "A differs: q1 has 1, q2 has 2")
        foreign = {**alike, "settings": {"SESSIONARY_SIGNING_KEYS": "k1 5e6f7a8b"}}
        role.answers["/v1/rules"] = (200, {"partitions": [], "workers": [foreign]})
        found = quota_checks(1, role)["quotas workers"]
        assert not found.ok
        assert "the role quotas has k1 5e6f7a8b, processors have k1 1a2b3c4d" in found.found
    away = quota_checks(1, role)["quotas partitions"]
    assert (away.found, away.advice) == (
        f"{role.url} does not answer",
        "start it: sessionary serve quotas, or read its log",
    )


def test_doctor_asks_all_workers_for_release_clock_and_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_findings, "_APART_S_MAX", 600.0)  # the checks take longer on a busy machine
    now_ms = int(time.time() * 1_000)
    reported = {"url": "http://w:8600", "newest": 2, "detail": None, "state_dir": "/state"}
    workers = [
        {**reported, "instance": "w1", "release": "0.2.0", "time_ms": now_ms, "state_free_bytes": 1 << 40},
        {**reported, "instance": "w2", "release": "0.1.0", "time_ms": now_ms - 3_600_000, "state_free_bytes": 1 << 10},
    ]
    with serve_fake_api() as api:
        api.answers = {
            "/v1/partitions": (200, {"partitions": [partition(0, clock_ms=now_ms - 1_000), partition(1)]}),
            "/v1/rules": (200, {"partitions": [{"partition": 0, "rules": 2}], "workers": workers}),
        }
        environ = {
            "SESSIONARY_CONTROL_URL": api.url,
            "SESSIONARY_OPERATOR_TOKEN": "op",
            "SESSIONARY_BOOTSTRAP_SERVERS": f"127.0.0.1:{free_port()}",
            "SESSIONARY_CLICKHOUSE_URL": f"http://127.0.0.1:{free_port()}",
        }
        found = {check.check: check for check in run_checks(environ)}
    assert found["partitions"] == Check("partitions", ok=True, found="2 partitions have an owner, none is halted")
    for name in ("workers", "clocks", "state disks"):
        assert (found[name].ok, "w2" in found[name].found, "w1" in found[name].found) == (False, True, False)
        assert found[name].advice


def test_doctor_names_the_url_that_is_away_and_asks_the_next_one() -> None:
    reported = {"instance": "w2", "url": "http://w2:8600", "newest": 2, "detail": None, "release": "0.2.0"}
    with serve_fake_api() as api:
        api.answers = {
            "/readyz": (200, {}),
            "/v1/partitions": (200, {"partitions": [partition(0)]}),
            "/v1/rules": (200, {"partitions": [{"partition": 0, "rules": 2}], "workers": [reported]}),
        }
        away = f"http://{LOOPBACK}:{free_port()}"
        environ = {
            "SESSIONARY_CONTROL_URL": f"{away},{api.url}",
            "SESSIONARY_OPERATOR_TOKEN": "op",
            "SESSIONARY_BOOTSTRAP_SERVERS": f"127.0.0.1:{free_port()}",
            "SESSIONARY_CLICKHOUSE_URL": f"http://127.0.0.1:{free_port()}",
        }
        found = {check.check: check for check in run_checks(environ)}
    assert (found["processor"].ok, found["processor"].found) == (False, f"{away} is not ready; {api.url}: ready")
    assert (found["partitions"].ok, found["workers"].ok) == (True, True)


WELL, READY = (True, "ok"), (True, "ready")
BEHIND = (False, "partition 2 stands at offset 7 for 16 s, the log ends at 9")
BLOCKED = (True, "blocked: partition 1: batch_unreadable")


def saying(state: tuple[bool, str]) -> Readiness:
    """Return a page's question that is always answered so."""
    return lambda: state


@pytest.fixture
def environ() -> Iterator[dict[str, str]]:
    """The variables of a stack with one sink that is well, one behind, one blocked and one away."""
    pages = {"audit": (WELL, READY), "batches": (WELL, BEHIND), "history": (BLOCKED, READY)}
    ports = dict(zip((*pages, "rejected"), free_ports(4), strict=True))
    with ExitStack() as stack:
        for kind, (health, readiness) in pages.items():
            address, registry = (LOOPBACK, ports[kind]), CollectorRegistry()
            stack.enter_context(serve_pages(address, registry, saying(health), saying(readiness)))
        yield {f"SESSIONARY_METRICS_PORT_SINK_{kind.upper()}": f"{port}" for kind, port in ports.items()}


def test_a_sink_s_pages_tell_what_blocks_it_or_why_it_is_behind(environ: dict[str, str]) -> None:
    port = environ["SESSIONARY_METRICS_PORT_SINK_REJECTED"]
    assert find_sink_faults(environ, 60.0) == {
        "audit": None,
        "batches": BEHIND[1],
        "history": BLOCKED[1],
        "rejected": f"http://{LOOPBACK}:{port} does not answer",
    }
    assert find_sink_faults({"SESSIONARY_METRICS_PORT_LAG_EXPORTER": port}, 60.0) == {}


def test_doctor_names_each_sink_that_is_not_well(environ: dict[str, str]) -> None:
    away = {
        "SESSIONARY_BOOTSTRAP_SERVERS": f"{LOOPBACK}:{environ['SESSIONARY_METRICS_PORT_SINK_REJECTED']}",
        "SESSIONARY_CLICKHOUSE_URL": f"http://{LOOPBACK}:{environ['SESSIONARY_METRICS_PORT_SINK_REJECTED']}",
    }
    (check,) = (check for check in run_checks(environ | away) if check.check == "sinks")
    assert not check.ok
    assert [f"sink {kind}" in check.found for kind in ("audit", "batches", "history", "rejected")] == [
        False,
        *[True] * 3,
    ]
    assert "batch_unreadable" in check.found
    assert "sessionary serve sink history" in check.advice


def test_a_lag_exporter_that_is_away_fails_where_its_port_is_known(environ: dict[str, str]) -> None:
    servers = {name: f"http://{LOOPBACK}:{free_port()}" for name in ("SESSIONARY_CLICKHOUSE_URL",)}
    servers["SESSIONARY_BOOTSTRAP_SERVERS"] = f"{LOOPBACK}:{free_port()}"
    for known, is_well in (("SINK_AUDIT", True), ("SINK_REJECTED", False)):  # in its place: one that is well or away
        port = environ[f"SESSIONARY_METRICS_PORT_{known}"]
        checks = run_checks({**servers, "SESSIONARY_METRICS_PORT_LAG_EXPORTER": port})
        (check,) = (check for check in checks if check.check == "lag exporter")
        assert (check.ok, check.advice != "") == (is_well, not is_well)


def test_the_version_of_the_driver_s_request_that_ends_a_transaction_is_named() -> None:
    assert "speaks EndTxn v1: a producer is replaced if" in doctor._check_driver()


def test_a_driver_that_logs_no_end_fails_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor._DriverLog, "log", lambda *_: None)
    check = doctor._run_check("driver", doctor._check_driver, "")
    assert (check.ok, check.advice) == (False, "install the confluent-kafka that constraints.txt names")
    assert "would be replaced after each" in check.found


def test_doctor_compares_the_requests_of_some_minutes_and_says_which_it_could_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A day of them takes longer than a check may, if the pipeline is busy."""
    asked: list[tuple[int, float]] = []

    def compare(
        _groups: object, _fetch: object, since_s: int, _late_s: int, timeout_s: float, topics: object
    ) -> TopicComparison:
        asked.append((since_s, timeout_s))
        return TopicComparison([], ["p.cleanup is not compared: the logs were not read in 10 s"])

    monkeypatch.setattr(landed_ends, "find_end_faults", lambda *_: [])
    monkeypatch.setattr(topic_counts, "compare_topics", compare)
    before_s = time.time()
    said = doctor._check_landed_ends(SinkGroupSettings(), ClickHouseSettings())
    assert said == (
        "the last record of each sink is in its table, no request of the last 10 min is missing; "
        "p.cleanup is not compared: the logs were not read in 10 s"
    )
    [(since_s, timeout_s)] = asked
    assert before_s - 601 <= since_s <= time.time() - 600
    assert timeout_s == 10
