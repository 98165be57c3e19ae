"""`sessionary partition`, and what doctor says of partitions, against a fake processor."""

import json
from collections.abc import Iterator, Mapping

import pytest

from sessionary.infra.cli.app import run
from sessionary.infra.cli.commands.doctor import run_checks
from sessionary.infra.cli.commands.operators.partition import describe_halt
from sessionary.infra.local.ports import free_port
from sessionary.infra.worker_findings import advise_halt
from tests.core.infra.fake_control_api import HALTED, FakeControlApi, partition, serve_fake_api

LIST, RETRY = "/v1/partitions", "/v1/partitions/1/retry"
OPEN = partition(0, instance="w1", next_offset=70, batch_number=7, live_rows=3)
AWAY = partition(2, "unreachable", url="http://w2:8600", detail="the worker does not answer: TimeoutError")


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeControlApi]:
    with serve_fake_api() as served:
        monkeypatch.setenv("SESSIONARY_CONTROL_URL", served.url)
        monkeypatch.setenv("SESSIONARY_OPERATOR_TOKEN", "op")
        yield served


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """stdout is a wide terminal."""
    monkeypatch.setattr("sessionary.infra.cli.tables.wants_json", lambda asked: asked)
    monkeypatch.setattr("sessionary.infra.cli.commands.operators.partition.wants_json", lambda asked: asked)
    monkeypatch.setenv("COLUMNS", "200")


def test_partitions_are_listed_as_the_api_gives_them(api: FakeControlApi, capfd: pytest.CaptureFixture[str]) -> None:
    api.answers = {LIST: (200, {"partitions": [OPEN, HALTED]})}
    assert run(["partition", "list"]) == 0
    out, err = capfd.readouterr()
    assert [json.loads(line) for line in out.splitlines()] == [OPEN, HALTED]
    assert err == ""


@pytest.mark.usefixtures("terminal")
def test_a_person_reads_why_a_partition_is_halted_and_what_to_run(
    api: FakeControlApi, capfd: pytest.CaptureFixture[str]
) -> None:
    api.answers = {LIST: (200, {"partitions": [OPEN, HALTED, AWAY]})}
    assert run(["partition", "list"]) == 0
    out, err = capfd.readouterr()
    assert [line.split() for line in out.splitlines()][1:] == [
        ["0", "open", "w1", "70", "3", "7"],
        ["1", "halted", "w1", "log_gap", "2023-11-14", "22:13:20"],
        ["2", "unreachable"],
    ]
    assert err.splitlines() == [
        "partition 1 is halted since 2023-11-14 22:13:20 UTC on w1, log_gap: the log begins at 7",
        "partition 2 is unreachable: the worker does not answer: TimeoutError",
        "remove the cause, then run: sessionary partition retry 1",
    ]


def test_a_retry_prints_the_partition_and_fails_if_it_is_halted_again(
    api: FakeControlApi, capfd: pytest.CaptureFixture[str]
) -> None:
    for answer, code, reported in (
        (partition(1), 0, ""),
        (partition(1, "opening"), 0, "is not open yet; see: sessionary partition list"),
        (HALTED, 1, "log_gap: the log begins at 7; its cause is still there"),
    ):
        api.answers = {RETRY: (200, answer)}
        assert run(["partition", "retry", "1"]) == code
        out, err = capfd.readouterr()
        assert json.loads(out) == answer
        assert reported in err
        assert bool(err) == bool(reported)


@pytest.mark.parametrize(
    ("status", "reason", "code"),
    [(401, "unauthorized", 2), (403, "forbidden", 2), (404, "unknown_partition", 4), (409, "not_halted", 5)],
)
def test_a_refused_retry_is_a_line_and_a_code(
    api: FakeControlApi, capfd: pytest.CaptureFixture[str], status: int, reason: str, code: int
) -> None:
    api.answer_problem(RETRY, status, reason, "why")
    assert run(["partition", "retry", "1"]) == code
    out, err = capfd.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)


@pytest.mark.parametrize(
    ("command", "path", "body"),
    [
        (["accept-gap", "1"], "accept-gap", {}),
        (["accept-truncation", "1"], "accept-truncation", {}),
        (["repair-clock", "1"], "repair-clock", {}),
        (["rebuild", "1"], "rebuild", {"mode": "refold"}),
        (["rebuild", "1", "--accept-rows"], "rebuild", {"mode": "accept_rows"}),
        (["rebuild", "1", "--accept-topics"], "rebuild", {"mode": "accept_topics"}),
        (["skip", "1", "70"], "skip", {"offset": 70, "to": None}),
        (["skip", "1", "70", "--to", "75"], "skip", {"offset": 70, "to": 75}),
    ],
)
def test_a_decision_is_sent_with_its_reason_and_its_result_is_printed(
    api: FakeControlApi, capfd: pytest.CaptureFixture[str], command: list[str], path: str, body: dict[str, object]
) -> None:
    page = f"/v1/partitions/1/{path}"
    api.answers = {page: (200, partition(1))}
    assert run(["partition", *command, "--reason", "schadhaft: zerstört"]) == 0
    assert json.loads(capfd.readouterr().out) == partition(1)
    (asked,) = api.asked
    assert (asked.method, asked.path, asked.authorization) == ("POST", page, "Bearer op")
    assert json.loads(asked.body) == {**body, "reason": "schadhaft: zerstört"}
    api.answers = {page: (200, HALTED)}
    assert run(["partition", *command, "--reason", "why"]) == 1
    api.answer_problem(page, 409, "wrong_offset", "halted at offset 71")
    assert run(["partition", *command, "--reason", "why"]) == 5
    assert "halted at offset 71" in capfd.readouterr().err


def test_a_decision_needs_a_reason(api: FakeControlApi) -> None:
    assert run(["partition", "skip", "1", "70"]) == 2
    assert run(["partition", "accept-gap", "1"]) == 2
    assert api.asked == []


REBUILD_PLAN = {"partition": 1, "mode": "refold", "rows_added": 2, "rows_changed": 1, "next_offset": 70}


def test_a_dry_run_needs_no_reason_and_prints_what_would_change(
    api: FakeControlApi, capfd: pytest.CaptureFixture[str]
) -> None:
    api.answers = {"/v1/partitions/1/rebuild": (200, REBUILD_PLAN)}
    assert run(["partition", "rebuild", "1", "--dry-run"]) == 0
    assert json.loads(capfd.readouterr().out) == REBUILD_PLAN
    (asked,) = api.asked
    assert json.loads(asked.body) == {"mode": "refold", "dry_run": True, "reason": "a dry run"}


def test_all_partitions_whose_topics_were_replaced_are_rebuilt_by_one_command(
    api: FakeControlApi, capfd: pytest.CaptureFixture[str]
) -> None:
    replaced = [partition(number, "halted", reason="topic_replaced", detail="why") for number in (2, 3)]
    pages = {f"/v1/partitions/{number}/rebuild": (200, partition(number)) for number in (2, 3)}
    api.answers = {LIST: (200, {"partitions": [OPEN, HALTED, *replaced]}), **pages}
    assert run(["partition", "rebuild", "--all", "--accept-topics", "--reason", "new cluster"]) == 0
    assert [json.loads(line) for line in capfd.readouterr().out.splitlines()] == [partition(2), partition(3)]
    assert [asked.path for asked in api.asked] == [LIST, *pages]
    api.answers = {LIST: (200, {"partitions": [OPEN, HALTED]})}
    assert run(["partition", "rebuild", "--all", "--accept-topics", "--reason", "new cluster"]) == 4


@pytest.mark.parametrize(
    "arguments",
    [
        ["1"],
        ["--reason", "why"],
        ["--all", "--reason", "why"],
        ["1", "--all", "--accept-topics", "--reason", "why"],
        ["1", "--accept-rows", "--accept-topics", "--reason", "why"],
    ],
)
def test_a_rebuild_names_one_partition_one_way_and_a_reason(api: FakeControlApi, arguments: list[str]) -> None:
    assert run(["partition", "rebuild", *arguments]) == 2
    assert api.asked == []


def _partition_check(api: FakeControlApi, environ: Mapping[str, str]) -> list[tuple[bool, str, str]]:
    servers = {name: f"127.0.0.1:{free_port()}" for name in ("SESSIONARY_BOOTSTRAP_SERVERS",)}
    servers["SESSIONARY_CLICKHOUSE_URL"] = f"http://127.0.0.1:{free_port()}"
    checks = run_checks({**servers, "SESSIONARY_CONTROL_URL": api.url, **environ})
    return [(check.ok, check.found, check.advice) for check in checks if check.check == "partitions"]


def test_doctor_shows_the_halts_of_all_workers_and_the_command(api: FakeControlApi) -> None:
    operator = {"SESSIONARY_OPERATOR_TOKEN": "op"}
    api.answers = {LIST: (200, {"partitions": [OPEN, HALTED, AWAY]})}
    ((ok, found, advice),) = _partition_check(api, operator)
    assert not ok
    assert found == f"{describe_halt(HALTED)}; {describe_halt(AWAY)}"
    assert advice == advise_halt(HALTED)
    api.answers = {LIST: (200, {"partitions": [OPEN, AWAY]})}
    ((ok, _, advice),) = _partition_check(api, operator)
    assert (ok, advice) == (False, "start a processor, or read the log of the one that does not answer")
    api.answers = {LIST: (200, {"partitions": [OPEN, partition(1, "opening")]})}
    assert _partition_check(api, operator) == [(True, "2 partitions have an owner, none is halted", "")]
    api.answer_problem(LIST, 403, "forbidden", "why")
    ((ok, found, _),) = _partition_check(api, operator)
    assert (ok, "why" in found) == (False, True)


def test_doctor_asks_no_partitions_without_an_operator_s_token(api: FakeControlApi) -> None:
    assert _partition_check(api, {}) == []
    assert "/v1/partitions" not in [request.path for request in api.asked]
