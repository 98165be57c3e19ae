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
        (f"{offset}={tmp_path / 'none.json'}", 4, "none.json"),
    ):
        assert run([*command, replace]) == code
        assert text in capfd.readouterr().err
