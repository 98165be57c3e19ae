"""The documents match the code: diagram, settings, commands, examples, links."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import sessionary.producers
from sessionary.producers import SessionClient
from sessionary.producers.testing import memory_client
from sessionary.schemas.settings.librdkafka_options import OPTION_PREFIX, check_options, read_options
from sessionary.stream_processors.core.quota.limits import TenantLimits
from sessionary.stream_processors.core.session.migration.transitions import HELD, LET_GO, TAKEN
from sessionary.stream_processors.core.session.transitions import TRANSITIONS
from sessionary.stream_processors.quotas.limits_file import parse_limits
from tests.style.project import ROOT, product_modules
from tests.support import transition_docs
from tests.support.command_lines import leaf_commands
from tests.support.settings_table import TABLE, settings, settings_table
from tests.support.transition_diagram import state_diagram
from tests.support.transition_docs import with_diagram

BEGIN, END = "<!-- state diagram: begin -->", "<!-- state diagram: end -->"

DOCUMENTS = (
    *("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"),
    *(
        path.relative_to(ROOT).as_posix()
        for folder in ("docs", "examples")
        for path in sorted((ROOT / folder).rglob("*.md"))
    ),
)
COMPOSE = ROOT / "infra" / "compose" / "docker-compose.yml"


def _read(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def test_the_state_diagram_is_the_table() -> None:
    text = _read("ARCHITECTURE.md")
    assert with_diagram(text) == text, "make docs redraws it"
    assert state_diagram().count("-->") == len(TRANSITIONS) + 1


def test_drawing_changes_only_the_text_between_the_marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "page.md"
    monkeypatch.setattr(transition_docs, "ARCHITECTURE", path)
    monkeypatch.setattr(transition_docs, "TABLE", tmp_path / "transitions.md")
    assert transition_docs.main() == 1
    path.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    assert transition_docs.main() == 0
    assert path.read_text() == f"before\n{BEGIN}\n{state_diagram()}\n{END}\nafter\n"
    assert (tmp_path / "transitions.md").read_text() == transition_docs.transitions_page()


def test_every_transition_is_documented() -> None:
    page = transition_docs.TABLE.read_text("utf-8")
    assert page == transition_docs.transitions_page(), "make docs brings it up to date"
    assert [line.split(" | ")[0] for line in page.splitlines() if line.startswith("| T")] == [
        f"| {transition.id}" for transition in (*TRANSITIONS, HELD, *TAKEN.values(), LET_GO)
    ]


@pytest.mark.parametrize("text", ["", BEGIN, f"{END}{BEGIN}", f"{BEGIN}{END}{BEGIN}{END}"])
def test_a_page_without_both_marks_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="once each"):
        with_diagram(text)


def test_every_setting_is_documented() -> None:
    assert TABLE.read_text("utf-8") == settings_table(), "make docs brings it up to date"
    assert [setting.variable for setting in settings() if not setting.meaning] == []


def test_every_variable_that_is_named_anywhere_is_a_setting() -> None:
    known = {setting.variable for setting in settings()}
    named = {variable for module in product_modules() for variable in _variables(module.text)}
    named |= {variable for name in (*DOCUMENTS, str(COMPOSE)) for variable in _variables(_read(name))}
    passed = {variable for variable in named if variable.startswith(OPTION_PREFIX)}
    assert named - known - passed == set()
    refused = [_option_fault(name) for name in read_options(dict.fromkeys(passed, "x"))]
    assert [fault for fault in refused if "has no setting" in fault or "cannot be set" in fault] == []


def test_the_compose_file_has_each_role_that_production_runs() -> None:
    found = set(re.findall(r'^    command: \["serve", "([a-z-]+)"', COMPOSE.read_text("utf-8"), re.M))
    roles = {name.removeprefix("serve ") for name in leaf_commands() if name.startswith("serve ")}
    assert found == roles - {"broker", "clickhouse", "task-worker"}  # local ones, and a service's


def test_the_limits_of_the_compose_file_can_be_used() -> None:
    default, tenants = parse_limits((COMPOSE.parent / "limits" / "quotas.json").read_bytes())
    assert (default, tenants) == (TenantLimits(20, "queue"), {})


def _option_fault(name: str) -> str:
    """Return what is wrong with a setting of librdkafka that is passed through."""
    try:
        check_options({name: "x"})
    except ValueError as error:
        return str(error)
    return ""


def _variables(text: str) -> set[str]:
    return set(re.findall(r"\bSESSIONARY_[A-Z_]*[A-Z]\b", text))


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_have_targets(name: str) -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", _read(name))
    gone = [target for target in targets if "://" not in target and not ((ROOT / name).parent / target).exists()]
    assert gone == []


@pytest.mark.parametrize("name", DOCUMENTS)
def test_make_targets_that_are_named_exist(name: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", _read("Makefile"), re.M))
    assert set(re.findall(r"(?:^ {4}|`)make ([a-z-]+)", _read(name), re.M)) <= targets


def _examples() -> Iterator[str]:
    yield from re.findall(r"^```python\n(.*?)^```$", _read("README.md"), re.M | re.S)


def test_the_client_example_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    example = next(_examples())
    assert len(example.splitlines()) <= 21
    client, memory = memory_client("acme", "billing", "agent-1")

    def in_memory(**identity: str) -> SessionClient:
        assert identity == {"tenant_id": "acme", "service_id": "billing", "agent_id": "agent-1"}
        return client

    monkeypatch.setattr(sessionary.producers, "SessionClient", in_memory)
    exec(compile(example, "README.md", "exec"), {})
    sent = [event.envelope.event_type for event in memory.events()]
    assert sent[0] == "session_created"
    assert {"usage_recorded", "state_updated", "session_paused", "session_resumed"} <= set(sent)
    assert sent[-1] == "session_terminated"
    capsys.readouterr()


def test_the_other_examples_run() -> None:
    examples = list(_examples())[1:]
    assert examples
    for example in examples:
        exec(compile(example, "README.md", "exec"), {})
