"""`sessionary doctor` without any server."""

import json

import pytest

from sessionary.infra.cli.app import run


def test_doctor_says_what_is_wrong_and_what_to_do(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--json"]) == 1
    out, err = capfd.readouterr()
    found = {check["check"]: check for check in map(json.loads, out.splitlines())}
    assert found["versions"]["ok"]
    for name in ("broker", "clickhouse", "processor"):
        assert not found[name]["ok"]
        assert found[name]["advice"]
    assert set(found) == {"versions", "broker", "clickhouse", "processor"}, "nothing more is asked of who is away"
    assert "broker" in err
