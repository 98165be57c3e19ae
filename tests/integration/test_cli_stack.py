"""Commands against real servers: a demo from nothing, and a stack that stays up."""

import base64
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pydantic import SecretStr

from docs.build.alert_rules import rule_metrics
from sessionary.infra.cli.app import run
from sessionary.infra.clickhouse_client import ClickHouseClient
from sessionary.infra.demo.runs import ModelCall, sample_runs
from sessionary.infra.environment import read_environment, tenant_tokens
from sessionary.infra.local.kafka.cluster import broker_answers
from sessionary.infra.metrics_targets import TARGETS_FILE
from sessionary.infra.stack import SINKS
from sessionary.producers import ProducerSettings, SessionClient
from sessionary.schemas.errors import SettingsError
from sessionary.schemas.rules import NEWEST_RULES
from sessionary.schemas.settings import ClickHouseSettings
from tests.support.metrics_page import read_page
from tests.support.processes import Processes
from tests.support.runbook import page_queries
from tests.support.terminal import TerminalCommand
from tests.support.waiting import wait_until

COMMAND = str(Path(sys.executable).parent / "sessionary")
RUNS = 7
FIGURES = {
    *("sessions", "events_sent", "events_applied", "rejected", "duplicates", "gaps", "transitions", "audit_rows"),
    *("history_rows", "missing", "doubled", "timeouts", "false_timeouts", "transition_latency_ms"),
    *("audit_write_latency_ms", "cleanup_latency_s", "reclaim_rate", "audit_io_share", "elapsed_s"),
}

_LISTS = {"sessions": ("session", "list"), "rejected": ("rejected", "list")}


class Done(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


def _command(*arguments: str, timeout_s: float = 300.0) -> Done:
    """Run a command as a process."""
    done = subprocess.run([COMMAND, *arguments], capture_output=True, text=True, timeout=timeout_s, check=False)
    return Done(done.returncode, done.stdout, done.stderr)


def _run(*arguments: str) -> Done:
    """Run a command in this process: its start would take longer than what it does."""
    out, err = TextIOWrapper(BytesIO(), "utf-8", write_through=True), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = run(arguments)
    out.seek(0)
    return Done(code, out.read(), err.getvalue())


def _check_figures(figures: dict[str, Any], sessions: int) -> None:
    """Check what holds for every demo run without a fault."""
    assert figures.keys() >= FIGURES
    assert figures["sessions"] == sessions
    assert figures["events_sent"] == figures["events_acknowledged"] > 10 * sessions
    assert [figures[name] for name in ("missing", "doubled", "false_timeouts", "unexpected", "gaps")] == [0] * 5
    assert figures["timeouts"] == figures["silent_sessions"] == 1
    # Seven broken records of which one is a good event and its copy, and four illegal events.
    assert figures["duplicates"] == 1
    assert figures["rejected"] == 10
    assert figures["history_rows"] >= figures["events_sent"]
    assert figures["audit_rows"] > figures["transitions"] > 3 * sessions - 2
    assert figures["reclaim_rate"] == 1.0
    assert 0 < figures["audit_io_share"] < 0.05
    for latency in ("transition_latency_ms", "audit_write_latency_ms"):
        assert 0 < figures[latency]["p50"] <= figures[latency]["p95"] <= figures[latency]["p99"]


def test_the_demo_starts_plays_accounts_and_leaves_nothing_behind() -> None:
    done = _command("demo", "--sessions", "6", "--json", timeout_s=900.0)
    assert done.code == 0, done.err
    (figures,) = done.rows
    _check_figures(figures, 6)
    assert "stopping the stack" in done.err


class Served(NamedTuple):
    """A stack that is up, and the figures of the runs that were loaded into it."""

    data: Path
    figures: dict[str, Any]

    def ask(self, *arguments: str) -> list[dict[str, Any]]:
        done = _run(*arguments, "--data", str(self.data), "--json")
        assert done.code == 0, done.err
        return done.rows


def _line(number: int) -> str:
    run = sample_runs(RUNS)[number]
    calls = [
        [step.t_s, "llm", *step[1:]] if isinstance(step, ModelCall) else [step.t_s, "tool", *step[1:]]
        for step in run.steps
    ]
    fields = {"run": run.name, "task": run.task, "duration_s": run.duration_s, "start_offset_s": number}
    return json.dumps({**fields, "events": [[0, "start"], *calls]}) + "\n"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Run `sessionary up` and load a few runs.

    It has the role quotas. SIGINT must end it and its processes, with exit code 0.
    """
    data = tmp_path_factory.mktemp("stack")
    limits = data / "quotas.json"
    limits.write_text(json.dumps({"default": {"concurrent_runs": 3}}))
    runs = data / "runs.ndjson"
    runs.write_text("".join(_line(number) for number in range(RUNS)))
    processes = Processes("cli_stack")
    try:
        up = processes.run([COMMAND, "up", "--data", str(data), "--quotas", str(limits)], name="up")
        wait_until(lambda: '"SESSIONARY_CONTROL_URL"' in up.log.read_text(), 600, "the stack's variables")
        loaded = _command("demo", "load", str(runs), "--data", str(data), "--json", timeout_s=600)
        assert loaded.code == 0, loaded.err
        stack = Served(data, loaded.rows[0])
        # `load` returns when every run has ended, but a timed-out session moves on by itself.
        # Queries give the same answer twice only after every session has reached its last state.
        wait_until(
            lambda: {row["state"] for row in stack.ask("session", "list")} == {"Archived"},
            300,
            "the archiving of every session",
        )
        yield stack
        up.signal(signal.SIGINT)
        assert up.wait(300)
        assert up.exit_code == 0
        assert not broker_answers(read_environment(data)["SESSIONARY_BOOTSTRAP_SERVERS"])
    finally:
        processes.stop()


def test_load_accounts_for_every_event(served: Served) -> None:
    _check_figures(served.figures, RUNS)


def test_sessions_are_listed_and_filtered(served: Served) -> None:
    rows = served.ask("session", "list")
    assert len({row["session_id"] for row in rows}) == RUNS
    assert all(row["state"] == "Archived" for row in rows)
    tenant = rows[0]["tenant_id"]
    ours = [row for row in rows if row["tenant_id"] == tenant]
    assert served.ask("session", "list", "--tenant", tenant) == ours
    assert len(served.ask("session", "list", "--limit", "2")) == 2
    assert served.ask("session", "list", "--tenant", "unknown") == []
    user, agent = rows[0]["user_id"], rows[0]["agents"][0]
    assert served.ask("session", "list", "--user", user) == [row for row in rows if row["user_id"] == user]
    assert served.ask("session", "list", "--agent", agent) == [row for row in rows if agent in row["agents"]]
    assert served.ask("session", "list", "--since", "1h") == rows
    assert served.ask("session", "list", "--since", "2100-01-01") == []
    assert _run("session", "list", "--since", "yesterday", "--data", str(served.data)).code == 5


def test_a_session_is_shown_by_its_id_or_its_beginning(served: Served) -> None:
    session = served.ask("session", "list")[0]["session_id"]
    (whole,), (short,) = served.ask("session", "show", session), served.ask("session", "show", session[:13])
    assert whole["session_id"] == short["session_id"] == session
    assert whole["transition_list"][0]["transition"] == "T01"
    assert whole["cleanups"]
    assert _run("session", "show", "ffffffff-0000", "--data", str(served.data)).code == 4


def test_a_timeline_tells_what_became_of_each_event(served: Served) -> None:
    session = served.ask("session", "list", "--state", "Archived")[0]["session_id"]
    rows = served.ask("session", "timeline", session)
    offsets = [row["source_offset"] for row in rows]
    assert offsets == sorted(offsets)
    assert (rows[0]["event_type"], rows[0]["to_state"]) == ("session_created", "Idle")
    assert (rows[-1]["agent"], rows[-1]["to_state"]) == ("processor", "Archived")
    assert served.ask("session", "timeline", session, "--follow") == rows  # an archived session has no more to tell
    assert served.ask("session", "timeline", session, "--since", rows[-1]["appended_at"]) == rows[-1:]
    query = "SELECT DISTINCT JSONExtractString(payload_json, 'model') AS model FROM history"
    models = served.ask("sql", f"{query} WHERE event_type = 'usage_recorded' AND session_id = '{session}'")
    assert {row["model"] for row in rows} - {None} == {row["model"] for row in models}


def test_a_rejected_event_is_marked_in_its_session_s_timeline(served: Served) -> None:
    # A broken record may come before its session: then the rejection has no number in the session.
    query = "SELECT session_id, groupArray(toString(reason_code)) AS reasons FROM audit FINAL WHERE kind = 'rejection'"
    (rejected, *_) = served.ask("sql", f"{query} AND session_id != '' GROUP BY session_id ORDER BY count() DESC")
    reported = [row["rejection"] for row in served.ask("session", "timeline", rejected["session_id"])]
    assert sorted(filter(None, reported)) == sorted(rejected["reasons"])
    assert "undecodable" in reported  # of a record that is no event


def test_a_timeline_is_a_table_on_a_terminal_of_80_columns(served: Served) -> None:
    session = served.ask("session", "list")[0]["session_id"]
    terminal = TerminalCommand(
        f"{COMMAND} session timeline {session} --data {served.data}", served.data, os.environ, columns=80
    )
    assert terminal.wait_end(300) == 0
    assert "→ Idle" in terminal.text
    assert "columns left out" not in terminal.text
    table = terminal.text[terminal.text.index("time ") :]
    assert max(map(len, table.splitlines())) <= 80


def test_a_story_is_one_page(served: Served, tmp_path: Path) -> None:
    session, page = served.ask("session", "list")[0]["session_id"], tmp_path / "story.html"
    done = _command("session", "timeline", session, "--html", str(page), "--data", str(served.data))
    assert (done.code, done.out) == (0, "")
    text = page.read_text("utf-8")
    assert f"session {session}" in text
    assert "no row of this session is missing or doubled (asked 20" in text


def test_a_rejected_record_is_listed_shown_and_sent_again(served: Served) -> None:
    reasons = {row["reason"]: row for row in served.ask("rejected", "list")}
    assert {"undecodable", "unknown_schema", "bad_key", "key_mismatch", "foreign_tenant", "stale_epoch"} <= set(reasons)
    assert served.ask("rejected", "list", "--since", "2100-01-01") == []
    assert served.ask("rejected", "list", "--since", "1h")
    place = reasons["undecodable"]["log_position"]
    (shown,) = served.ask("rejected", "show", place)
    assert base64.b64decode(shown["value_base64"]) == b"this is no Avro"
    (shown,) = served.ask("rejected", "show", reasons["key_mismatch"]["log_position"])
    assert shown["event"]["envelope"]["event_type"] == "progress_reported"
    (sent,) = served.ask("rejected", "replay", place)
    assert sent["replayed"] == place
    wait_until(
        lambda: (
            sent["as"] in {row["log_position"] for row in served.ask("rejected", "list", "--reason", "undecodable")}
        ),
        30,
        "the same record rejected again",
        pause_s=0.5,
    )
    assert _run("rejected", "show", "0:999999", "--data", str(served.data)).code == 4


def test_a_list_that_is_followed_has_its_new_rows_once_until_ctrl_c(served: Served) -> None:
    before = {name: served.ask(*words) for name, words in _LISTS.items()}
    followed = Processes("followed_lists")
    try:
        running = {
            name: followed.run([COMMAND, *words, "--follow", "--data", str(served.data), "--json"], name=name)
            for name, words in _LISTS.items()
        }

        def lines(name: str) -> list[dict[str, Any]]:
            text = running[name].log.read_text().splitlines(keepends=True)
            return [json.loads(line) for line in text if line.startswith("{") and line.endswith("}\n")]

        wait_until(
            lambda: all(len(lines(name)) == len(rows) for name, rows in before.items()), 60, "the rows of before"
        )
        assert {name: lines(name)[::-1] for name in _LISTS} == before
        place = served.ask("rejected", "list", "--reason", "undecodable")[0]["log_position"]
        (sent,) = served.ask("rejected", "replay", place)
        wait_until(lambda: lines("rejected")[-1]["log_position"] == sent["as"], 60, "the new rejection")
        for process in running.values():
            process.signal(signal.SIGINT)
            assert process.wait(180)
            assert process.exit_code == 130
        assert len(lines("rejected")) == len(before["rejected"]) + 1
        assert len(lines("sessions")) == len(before["sessions"])
    finally:
        followed.stop()


def test_rows_are_written_as_csv_and_parquet_and_a_query_may_be_a_file(served: Served, tmp_path: Path) -> None:
    query, folder = tmp_path / "query.sql", ["--data", str(served.data)]
    query.write_text("SELECT count() AS n, 'a, b' AS a FROM v_sessions;")
    assert _run("sql", "--file", str(query), "--format", "csv", *folder).out == f'"n","a"\n{RUNS},"a, b"\n'
    command, text = [COMMAND, "sql", *folder], query.read_text()
    piped = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    assert json.loads(piped.stdout) == {"n": RUNS, "a": "a, b"}
    table = tmp_path / "rows.parquet"
    assert _run("sql", "--file", str(query), "--output", str(table), *folder).code == 0
    former = table.read_bytes()
    assert (former[:4], former[-4:]) == (b"PAR1", b"PAR1")
    assert _run("sql", "SELECT nothing", "--output", str(table), *folder).code == 5
    assert (table.read_bytes(), {path.name for path in tmp_path.iterdir()}) == (former, {"query.sql", "rows.parquet"})
    assert _run("sql", "SELECT 1", "--output", str(tmp_path / "rows.txt"), *folder).code == 5


def test_sql_gives_rows_and_its_errors_are_a_line(served: Served) -> None:
    assert served.ask("sql", "SELECT count() AS n, 'a' AS a FROM v_sessions;") == [{"n": RUNS, "a": "a"}]
    assert served.ask("sql", "/* a */ -- b\nSELECT unhex('c328') AS bytes") == [{"bytes": "wyg="}]
    for rejected in ("SELECT 1 FORMAT CSV", "WITH 1 AS x INSERT INTO schema_migrations SELECT x, 'a', 'b', now()"):
        assert _run("sql", rejected, "--data", str(served.data)).code == 5
    wrong = _command("sql", "SELECT nothing FROM nowhere", "--data", str(served.data))
    assert (wrong.code, wrong.out) == (5, "")
    assert len(wrong.err.splitlines()) == 1


def test_the_queries_of_the_runbook_run(served: Served) -> None:
    source = ClickHouseClient(ClickHouseSettings.from_env(read_environment(served.data)))
    for query in page_queries():
        assert isinstance(source.fetch_rows(query), list), query


def test_clickhouse_wants_the_password_that_the_folder_keeps(served: Served) -> None:
    environ = read_environment(served.data)
    assert stat.S_IMODE((served.data / "env.json").stat().st_mode) == 0o600
    settings = ClickHouseSettings.from_env(environ)
    assert ClickHouseClient(settings).fetch_one("SELECT 1 AS n") == {"n": 1}
    for password in ("", "wrong"):
        with pytest.raises(SettingsError, match="password is incorrect"):
            ClickHouseClient(settings.model_copy(update={"clickhouse_password": SecretStr(password)})).server_version()


def test_every_target_of_prometheus_serves_its_role_s_metrics_and_is_well(served: Served) -> None:
    groups = json.loads((served.data / TARGETS_FILE).read_text())
    targets = {group["labels"]["instance"]: (group["labels"]["job"], *group["targets"]) for group in groups}
    assert targets.keys() == {"processor", "quotas", "lag-exporter", *(f"sink-{kind}" for kind in SINKS)}
    for name, (job, address) in targets.items():
        named = rule_metrics(job) if name != "quotas" else {"sessionary_processor_quota_claims"}
        wait_until(partial(_well_pages, address, named), 120, f"{name} to be well, and to serve {sorted(named)}")
        assert len(named) >= (4 if name != "quotas" else 1)
    for kind in SINKS:
        series = f'sessionary_sink_rows_total{{group="sessionary.sink.{kind}",sink="{kind}"}} '
        assert series in read_page(f"http://{targets[f'sink-{kind}'][1]}/metrics")[1]


def _well_pages(address: str, named: set[str]) -> bool:
    """Return whether a role is well and serves these metrics, which a busy machine may delay."""
    pages = {path: read_page(f"http://{address}/{path}") for path in ("metrics", "healthz", "readyz")}
    has_all = all(f"# HELP {name} " in pages["metrics"][1] for name in named)
    return has_all and all(status == 200 for status, _ in pages.values())


def test_everything_is_as_it_should_be_and_applying_again_changes_nothing(served: Served) -> None:
    def good_checks() -> list[dict[str, Any]]:
        """Return the checks if all are good: what a busy machine delays is good the next time."""
        checks = _run("doctor", "--data", str(served.data), "--json").rows
        sys.stdout.writelines(f"{check}\n" for check in checks if not check["ok"])
        return checks if all(check["ok"] for check in checks) else []

    checks = wait_until(good_checks, 180, "every check to be good", pause_s=1)
    (sinks,) = (check["found"] for check in checks if check["check"] == "sinks")
    assert sinks == "audit, batches, history, rejected keep up, none is blocked"
    assert {"lag quotas", "quotas", "quotas partitions"} <= {check["check"] for check in checks}
    assert served.ask("topics", "apply") == []
    assert served.ask("db", "migrate") == []


def test_partitions_are_listed_and_an_open_one_is_not_retried(served: Served) -> None:
    rows = served.ask("partition", "list")
    assert [(row["partition"], row["state"], row["live_rows"]) for row in rows] == [(n, "open", 0) for n in range(4)]
    assert sum(row["next_offset"] for row in rows) > served.figures["events_sent"]
    done = _command("partition", "retry", "1", "--data", str(served.data))
    assert (done.code, done.out) == (5, "")
    assert "partition 1 is open: only a halted partition is opened again" in done.err
    checked = _run("doctor", "--data", str(served.data), "--json").rows
    assert "partitions" in {check["check"] for check in checked}


def test_a_new_stack_is_judged_by_the_newest_rules(served: Served) -> None:
    (listing,) = served.ask("rules", "list")
    assert [found["rules"] for found in listing["partitions"]] == [NEWEST_RULES.version] * 4
    rows = served.ask("sql", "SELECT version, principal FROM v_rules WHERE version > 1")
    assert rows == [{"version": NEWEST_RULES.version, "principal": "operator"}] * 4
    (again,) = served.ask("rules", "activate")
    assert again["partitions"] == listing["partitions"]
    assert [worker["newest"] for worker in again["workers"]] == [NEWEST_RULES.version]


def test_a_run_of_a_stack_with_limits_takes_a_slot_of_its_tenant(served: Served, tmp_path: Path) -> None:
    environ, (listing,) = read_environment(served.data), served.ask("rules", "list")
    assert {found["quotas"] for found in listing["partitions"]} == {True}
    assert listing["quota_workers"] == 1
    assert "sessionary.quotas" in {row["group"] for row in served.ask("lag")}
    tenant, token = next(iter(tenant_tokens(environ).items()))
    settings = ProducerSettings.from_env(environ, api_token=token, spool_dir=tmp_path / "spool", quota_wait_s=300.0)
    page, taken = f"{environ['SESSIONARY_QUOTAS_URL']}/metrics", 'quota_claims{state="taken"} 1.0'
    with (
        SessionClient(tenant_id=tenant, service_id="billing", agent_id="a1", settings=settings) as client,
        client.session(user_id="u1") as session,
        session.run("report"),
    ):
        wait_until(lambda: taken in read_page(page)[1], 120, "the slot to be taken")
    log = (served.data / "logs" / "quotas.log").read_text()
    assert "is ready: 4 partitions" in log


def test_a_second_stack_over_the_same_folder_is_rejected(served: Served) -> None:
    second = _command("up", "--data", str(served.data))
    assert second.code == 6
    assert "another stack" in second.err
