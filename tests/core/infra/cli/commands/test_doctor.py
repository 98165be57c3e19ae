"""`sessionary doctor` without any server but a fake processor."""

import json
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from sessionary.infra.cli.app import run
from sessionary.infra.cli.commands.doctor import Check, run_checks
from sessionary.infra.local.ports import free_port
from tests.core.infra.fake_control_api import partition, serve_fake_api


def test_doctor_says_what_is_wrong_and_what_to_do(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--json"]) == 1
    out, err = capfd.readouterr()
    found = {check["check"]: check for check in map(json.loads, out.splitlines())}
    assert found["versions"]["ok"]
    for name in ("broker", "clickhouse", "processor"):
        assert not found[name]["ok"]
        assert found[name]["advice"]
    asked = {"versions", "broker", "clickhouse", "processor"}
    assert set(found) == asked, "nothing more is asked of who is away"
    assert "broker" in err


def test_doctor_looks_at_the_disk_of_a_stack_before_its_first_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _folder: SimpleNamespace(free=3 << 20, total=90 << 20))
    assert run(["doctor", "--data", str(tmp_path / "new"), "--json"]) == 1
    found = {check["check"]: check for check in map(json.loads, capfd.readouterr().out.splitlines())}
    assert not found["disks"]["ok"]
    assert str(tmp_path / "new") in found["disks"]["found"]
    assert found["disks"]["advice"].startswith("make room: du ")


def test_doctor_asks_all_workers_for_release_clock_and_disk() -> None:
    now_ms = int(time.time() * 1_000)
    told = {"url": "http://w:8600", "newest": 2, "detail": None, "state_dir": "/state"}
    workers = [
        {**told, "instance": "w1", "release": "0.2.0", "time_ms": now_ms, "state_free_bytes": 1 << 40},
        {**told, "instance": "w2", "release": "0.1.0", "time_ms": now_ms - 60_000, "state_free_bytes": 1 << 10},
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
