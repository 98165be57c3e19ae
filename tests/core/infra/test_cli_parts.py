"""Where a stack is found, what is printed, which topics differ: each without a server."""

import json
import re
import socket
import stat
from pathlib import Path

import pytest

from sessionary.infra.cli.output import show_object, show_rows
from sessionary.infra.demo.wait import Look, wait_for
from sessionary.infra.environment import read_environment, stack_environment, tenant_tokens, write_environment
from sessionary.infra.local.errors import PortTaken
from sessionary.infra.stack import Ports, Stack, inherited
from sessionary.infra.topics import TopicState, differences
from sessionary.schemas.errors import Invalid, SettingsError
from sessionary.schemas.topics import topic_specs

SERVED = {"SESSIONARY_BOOTSTRAP_SERVERS": "127.0.0.1:1", "SESSIONARY_PARTITIONS": "8"}


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that a stack has served, beside the working folder."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "stack"
    folder.mkdir()
    write_environment(folder, SERVED)
    return folder


def test_a_named_folder_rules_over_the_environment(served: Path) -> None:
    ours = {"SESSIONARY_BOOTSTRAP_SERVERS": "elsewhere:1", "HOME": "/home"}
    assert stack_environment(served, ours) == {**SERVED, "HOME": "/home"}


def test_a_named_folder_without_a_stack_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="sessionary up"):
        stack_environment(tmp_path, {})


def test_an_address_in_the_environment_rules_over_the_default_folder(served: Path) -> None:
    served.rename(served.parent / ".sessionary")
    ours = {"SESSIONARY_CLICKHOUSE_URL": "http://elsewhere:1"}
    assert stack_environment(None, ours) == ours
    assert stack_environment(None, {"SESSIONARY_TOPIC_PREFIX": "x"}) == {**SERVED, "SESSIONARY_TOPIC_PREFIX": "x"}


def test_without_any_stack_the_environment_is_all_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert stack_environment(None, {"A": "b"}) == {"A": "b"}


def test_the_file_is_for_its_owner_only(served: Path) -> None:
    assert stat.S_IMODE((served / "env.json").stat().st_mode) == 0o600
    assert read_environment(served) == SERVED


@pytest.mark.parametrize("text", ["", "[]", "{"])
def test_a_file_of_somebody_else_is_an_error(served: Path, text: str) -> None:
    (served / "env.json").write_text(text)
    with pytest.raises(SettingsError):
        read_environment(served)


def test_tokens_are_read_by_tenant() -> None:
    assert tenant_tokens({"SESSIONARY_API_TOKENS": '{"secret": "acme"}'}) == {"acme": "secret"}
    assert tenant_tokens({}) == {}
    for text in ("nonsense", "[]"):
        with pytest.raises(SettingsError):
            tenant_tokens({"SESSIONARY_API_TOKENS": text})


def test_rows_are_a_json_line_each_where_stdout_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    rows: list[dict[str, object]] = [{"a": 1, "b": "x[red]"}, {"a": None, "b": "ü"}]
    show_rows(rows, as_json=False, columns=["a"])
    show_object(rows[0], as_json=False)
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [*rows, rows[0]]


def test_rows_are_a_table_on_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    show_rows([{"name": "x[red]y", "hidden": 1}], as_json=False, columns=["name"])
    out = capsys.readouterr().out
    assert "x[red]y" in out, "what comes from events is text, never markup"
    assert "hidden" not in out


def test_a_narrow_terminal_cuts_ids_and_leaves_columns_out_but_breaks_no_word(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {"session_id": "2e2cf084-624e-57af-a99c-db928353888f", "at": "2026-11-21T04:18:13.707001Z"}
    row |= {
        "event_type": "session_phase_changed",
        "reason": "Agent timeout after 3s: nothing was heard",
        "last": "x" * 9,
    }
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    show_rows([row], as_json=False, columns=list(row))
    shown = capsys.readouterr()
    out = re.sub(r"\x1b\[[0-9;]*m", "", shown.out)
    assert out.splitlines()[1].startswith("2e2cf084-624e  11-21 04:18:13  session_phase_changed  Agent timeout")
    assert all(len(line) <= 80 for line in out.splitlines())
    assert "last" in shown.err
    assert "last" not in out
    monkeypatch.setenv("COLUMNS", "160")
    show_rows([row], as_json=False, columns=list(row))
    shown = capsys.readouterr()
    assert all(value in shown.out for name, value in row.items() if name != "at")
    assert shown.err == ""


def test_parts_take_the_shell_s_proxies_but_no_address_of_another_stack() -> None:
    shell = {"HTTPS_PROXY": "p", "HOME": "/h", "SESSIONARY_LOG_LEVEL": "DEBUG", "SESSIONARY_STORE": "rocksdb"}
    assert inherited({**shell, "SESSIONARY_TOPIC_PREFIX": "x", "SESSIONARY_SASL_USERNAME": "u"}) == shell


def test_a_stack_does_not_start_where_somebody_else_holds_its_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sessionary.infra.stack._PORT_WAIT_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as held:
        stack = Stack(tmp_path, ports=Ports(broker=held.getsockname()[1]))
        with pytest.raises(PortTaken, match="--port-broker"):
            stack.start()
        stack.stop()
    assert read_environment(tmp_path) == {}


def test_topics_as_they_should_be_need_nothing() -> None:
    specs = topic_specs("p", 4)
    assert differences(specs, {spec.name: TopicState(4, dict(spec.config)) for spec in specs}) == []


def test_a_missing_topic_is_created_and_a_differing_setting_set() -> None:
    specs = topic_specs("p", 4)
    found = {spec.name: TopicState(4, dict(spec.config)) for spec in specs[1:]}
    found[specs[1].name] = TopicState(4, {**specs[1].config, "retention.ms": "1"})
    first, second = differences(specs, found)
    assert (first.create, first.spec) == (True, specs[0])
    assert (second.create, dict(second.config)) == (False, {"retention.ms": specs[1].config["retention.ms"]})
    assert "retention.ms" in second.text()


@pytest.mark.parametrize("partitions", [3, 5])
def test_another_number_of_partitions_is_refused(partitions: int) -> None:
    specs = topic_specs("p", 4)
    with pytest.raises(Invalid, match="SESSIONARY_PARTITIONS"):
        differences(specs, {specs[0].name: TopicState(partitions, specs[0].config)})


def test_waiting_ends_when_all_is_done_or_nothing_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("sessionary.infra.demo.wait.time.monotonic", lambda: clock[0])
    monkeypatch.setattr("sessionary.infra.demo.wait.time.sleep", lambda s: clock.__setitem__(0, clock[0] + s))
    states = iter([1, 2, 3])
    said: list[str] = []

    def moving() -> Look:
        state = next(states)
        return Look(state == 3, state, f"at {state}")

    assert wait_for(moving, 1.0, said.append)
    assert said == ["at 1", "at 2"]
    began = clock[0]
    assert not wait_for(lambda: Look(done=False, state="same", text=""), 5.0, said.append)
    assert 5.0 < clock[0] - began < 7.0
