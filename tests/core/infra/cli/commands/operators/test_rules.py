"""`sessionary rules` against a fake processor."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from sessionary.infra.cli.app import run
from sessionary.schemas.rules import NEWEST_RULES
from tests.core.infra.fake_control_api import FakeControlApi, serve_fake_api

PATH = "/v1/rules"
NEWEST = NEWEST_RULES.version
OLD = {"instance": None, "url": "http://w2:8600", "newest": None, "detail": "it is of an older release"}
NEW = {"instance": "w1", "url": "http://w1:8600", "newest": NEWEST, "detail": None}


def listing(*rules: int, days: int = 30, workers: tuple[dict[str, Any], ...] = (NEW,)) -> dict[str, Any]:
    known = {"state": "open", "instance": "w1", "finished_run_days": days}
    absent = dict.fromkeys(("announced", "principal", "detail"))
    partitions = [{"partition": n, "rules": version, **known, **absent} for n, version in enumerate(rules)]
    return {"partitions": partitions, "workers": list(workers)}


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeControlApi]:
    with serve_fake_api() as served:
        monkeypatch.setenv("SESSIONARY_CONTROL_URL", served.url)
        monkeypatch.setenv("SESSIONARY_OPERATOR_TOKEN", "op")
        yield served


def test_rules_are_listed_as_the_api_gives_them(api: FakeControlApi, capfd: pytest.CaptureFixture[str]) -> None:
    api.answers = {PATH: (200, listing(1, 1))}
    assert run(["rules", "list"]) == 0
    out, err = capfd.readouterr()
    assert (json.loads(out), err) == (listing(1, 1), "")


def test_a_person_reads_rules_and_workers(
    api: FakeControlApi, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sessionary.infra.cli.tables.wants_json", lambda asked: asked)
    monkeypatch.setattr("sessionary.infra.cli.commands.operators.rules.wants_json", lambda asked: asked)
    monkeypatch.setenv("COLUMNS", "200")
    api.answers = {PATH: (200, {**listing(1, NEWEST, workers=(NEW, OLD)), "quota_workers": 2})}
    assert run(["rules", "list"]) == 0
    out, err = capfd.readouterr()
    assert [line.split() for line in out.splitlines()][1:] == [
        ["0", "open", "w1", "1", "30"],
        ["1", "open", "w1", str(NEWEST), "30"],
    ]
    assert err.splitlines() == [
        f"worker w1: knows rules {NEWEST}",
        "worker http://w2:8600: it is of an older release",
        "workers of the role quotas: 2",
    ]


def test_the_newest_rules_are_activated_by_default(api: FakeControlApi, capfd: pytest.CaptureFixture[str]) -> None:
    api.answers = {PATH: (200, listing(NEWEST, NEWEST))}
    assert run(["rules", "activate"]) == 0
    assert run(["rules", "activate", "--version", "1"]) == 0
    assert [(asked.method, json.loads(asked.body)) for asked in api.asked] == [
        ("POST", {"version": NEWEST}),
        ("POST", {"version": 1}),
    ]
    assert json.loads(capfd.readouterr().out.splitlines()[0]) == listing(NEWEST, NEWEST)


def test_for_how_long_finished_runs_are_kept_is_an_option(
    api: FakeControlApi, capfd: pytest.CaptureFixture[str]
) -> None:
    api.answers = {PATH: (200, listing(NEWEST, NEWEST, days=90))}
    assert run(["rules", "activate", "--finished-run-days", "90"]) == 0
    assert json.loads(api.asked[0].body) == {"version": NEWEST, "finished_run_days": 90}
    assert run(["rules", "activate", "--finished-run-days", "91"]) == 1
    assert "not in force yet in partition 0, 1" in capfd.readouterr().err
    assert run(["rules", "activate", "--finished-run-days", "0"]) == 2


def test_for_how_long_a_run_may_be_resumed_is_an_option(api: FakeControlApi, capfd: pytest.CaptureFixture[str]) -> None:
    answer = listing(NEWEST, NEWEST)
    for found in answer["partitions"]:
        found["resume_ms"] = 60_000
    api.answers = {PATH: (200, answer)}
    assert run(["rules", "activate", "--resume-ms", "60000"]) == 0
    assert json.loads(api.asked[0].body) == {"version": NEWEST, "resume_ms": 60_000}
    assert run(["rules", "activate", "--resume-ms", "60001"]) == 1
    assert "not in force yet in partition 0, 1" in capfd.readouterr().err
    assert run(["rules", "activate", "--resume-ms", "0"]) == 2


def test_quotas_are_an_option(api: FakeControlApi, capfd: pytest.CaptureFixture[str]) -> None:
    answer = listing(NEWEST, NEWEST)
    for found in answer["partitions"]:
        found["quotas"] = True
    api.answers = {PATH: (200, answer)}
    assert run(["rules", "activate", "--quotas"]) == 0
    assert json.loads(api.asked[0].body) == {"version": NEWEST, "quotas": True}
    assert run(["rules", "activate", "--no-quotas"]) == 1
    assert json.loads(api.asked[1].body) == {"version": NEWEST, "quotas": False}
    assert "not in force yet in partition 0, 1" in capfd.readouterr().err


@pytest.mark.parametrize("what", ["session", "token"])
def test_quotas_of_sessions_and_of_tokens_are_options_of_their_own(
    what: str, api: FakeControlApi, capfd: pytest.CaptureFixture[str]
) -> None:
    answer, name = listing(NEWEST, NEWEST), f"{what}_quotas"
    for found in answer["partitions"]:
        found[name] = True
    api.answers = {PATH: (200, answer)}
    assert run(["rules", "activate", f"--{what}-quotas"]) == 0
    assert json.loads(api.asked[0].body) == {"version": NEWEST, name: True}
    assert run(["rules", "activate", f"--no-{what}-quotas"]) == 1
    assert json.loads(api.asked[1].body) == {"version": NEWEST, name: False}
    assert "not in force yet in partition 0, 1" in capfd.readouterr().err


@pytest.mark.parametrize("name", ["quotas", "session-quotas", "token-quotas"])
def test_quotas_are_turned_on_or_off_and_not_both(
    api: FakeControlApi, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    for options in ([f"--{name}", f"--no-{name}"], [f"--no-{name}", f"--{name}"]):
        assert run(["rules", "activate", *options]) == 2
        out, err = capfd.readouterr()
        assert (out, err) == (
            "",
            f"sessionary: --{name} and --no-{name} contradict each other: give one of them\n",
        )
    assert api.asked == []


def test_rules_that_have_not_begun_everywhere_fail_the_command(
    api: FakeControlApi, capfd: pytest.CaptureFixture[str]
) -> None:
    api.answers = {PATH: (200, listing(NEWEST, 1))}
    assert run(["rules", "activate"]) == 1
    assert f"rules {NEWEST} are not in force yet in partition 1: look again" in capfd.readouterr().err


def test_a_refused_activation_names_the_workers(api: FakeControlApi, capfd: pytest.CaptureFixture[str]) -> None:
    api.answer_problem(PATH, 409, "unsupported_rules", "not every worker is known to know rules 2: w2")
    assert run(["rules", "activate"]) == 5
    out, err = capfd.readouterr()
    assert (out, err) == ("", "sessionary: not every worker is known to know rules 2: w2\n")


def test_a_processor_without_rules_is_of_an_older_release(
    api: FakeControlApi, capfd: pytest.CaptureFixture[str]
) -> None:
    api.answer_problem(PATH, 404, "not_found", "GET /v1/rules")
    assert run(["rules", "list"]) == 5
    assert "one of an older release" in capfd.readouterr().err
