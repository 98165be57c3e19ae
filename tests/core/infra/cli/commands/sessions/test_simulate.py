"""`sessionary session simulate` of a log in memory."""

import json
from pathlib import Path

import pytest

from sessionary.infra.cli.app import run
from sessionary.producers import tool
from sessionary.producers.testing import memory_client
from sessionary.producers.testing.memory_runs import MemoryRecords


@tool(effect="read")
def price(item: str) -> int:
    return 7


def test_the_first_difference_is_printed_and_a_wrong_option_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    client, memory = memory_client()
    with client.session(user_id="u1") as session:
        price("screw")
    monkeypatch.setattr("sessionary.producers.control.kafka_record.KafkaRecords", lambda *_: MemoryRecords(memory))
    offset = next(each.offset for each in memory.verdicts() if each.event_type == "tool_call_succeeded")
    (tmp_path / "nine.json").write_text("9")
    (tmp_path / "bad.json").write_text("nine")
    command = ["session", "simulate", session.session_id, "--tenant", "acme", "--replace"]
    assert run([*command, f"{offset}={tmp_path / 'nine.json'}", "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert (found["first"]["offset"], found["first"]["event_type"]) == (offset, "tool_call_succeeded")
    assert (found["first"]["recorded"], found["first"]["simulated"], found["rows_differing"]) == ("'7'", "'9'", 2)
    monkeypatch.setattr("sessionary.infra.cli.commands.sessions.simulate.wants_json", lambda _: False)
    assert run([*command, f"{offset}={tmp_path / 'nine.json'}"]) == 0
    out, err = capfd.readouterr()
    assert out.startswith(f"offset {offset}, tool_call_succeeded: result_json of the row ")
    assert out.rstrip().endswith("is '9', and was '7'")
    assert "2 rows differ at the end" in err  # the session's has the last result
    for replace, code, text in (
        (f"{offset}", 5, "use EVENT=FILE"),
        (f"{offset}={tmp_path / 'bad.json'}", 5, "is no JSON"),
        (f"99={tmp_path / 'nine.json'}", 4, "Offset 99 not found"),
        (f"{offset}={tmp_path / 'none.json'}", 4, "none.json does not exist; write the other result into it"),
        (f"{offset}={tmp_path}", 5, f"--replace {offset}={tmp_path}: {tmp_path} cannot be read (Is a directory); name"),
    ):
        assert run([*command, replace]) == code
        assert text in capfd.readouterr().err


def test_with_a_tenant_clickhouse_finds_the_session_of_the_beginning_of_an_id(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    client, memory = memory_client()
    with client.session(user_id="u1", session_id="order/7") as session:
        price("screw")
    asked = []

    def find_session(_: object, start: str, tenant: str) -> dict[str, str]:
        asked.append((start, tenant))
        return {"tenant_id": tenant, "session_id": session.session_id}

    module = "sessionary.infra.cli.commands.sessions.simulate"
    monkeypatch.setattr("sessionary.producers.control.kafka_record.KafkaRecords", lambda *_: MemoryRecords(memory))
    monkeypatch.setattr(f"{module}.clickhouse_client", lambda _: None)
    monkeypatch.setattr(f"{module}.find_session", find_session)
    offset = next(each.offset for each in memory.verdicts() if each.event_type == "tool_call_succeeded")
    (tmp_path / "nine.json").write_text("9")
    start = session.session_id[:6]
    for given in (start, session.session_id, "order/7"):
        command = ["session", "simulate", given, "--tenant", "acme", "--replace", f"{offset}={tmp_path / 'nine.json'}"]
        assert run([*command, "--json"]) == 0
        assert json.loads(capfd.readouterr().out)["first"]["simulated"] == "'9'"
    assert asked == [(start, "acme")]  # the others are whole
