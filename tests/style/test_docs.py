"""The documents match the code: diagram, settings, commands, examples, links."""

import re
from pathlib import Path
from typing import Any

import pytest

import sessionary.producers
from docs.build import transition_docs
from docs.build.commands_page import leaf_commands
from docs.build.settings_table import TABLE, settings, settings_table
from docs.build.transition_diagram import state_diagram
from docs.build.transition_docs import with_diagram
from sessionary.producers import SessionClient
from sessionary.producers.testing import memory_client
from sessionary.schemas.settings.librdkafka_options import OPTION_PREFIX, check_options, read_options
from sessionary.stream_processors.core.quota.limits import TenantLimits
from sessionary.stream_processors.core.session.migration import HELD, LET_GO, TAKEN
from sessionary.stream_processors.core.session.transitions import TRANSITIONS
from sessionary.stream_processors.quotas.settings import parse_limits
from tests.style.project import ROOT, product_modules

BEGIN, END = "<!-- state diagram: begin -->", "<!-- state diagram: end -->"

DOCUMENTS = (
    *("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"),
    *(
        path.relative_to(ROOT).as_posix()
        for folder in ("docs", "examples")
        for path in sorted((ROOT / folder).rglob("*.md"))
    ),
)
_BYTES_MAX = {"README.md": 8_000, "ARCHITECTURE.md": 30_000, "CONTRIBUTING.md": 6_000, "CHANGELOG.md": 12_000}
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
    with pytest.raises(FileNotFoundError):
        transition_docs.write()
    path.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    assert transition_docs.write() == (path, tmp_path / "transitions.md")
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


def test_links_have_targets() -> None:
    links = [(name, target) for name in DOCUMENTS for target in re.findall(r"\]\(([^)#]+)\)", _read(name))]
    local = [(name, target) for name, target in links if "://" not in target]
    assert len(local) > 10
    assert [link for link in local if not ((ROOT / link[0]).parent / link[1]).exists()] == []


def test_make_targets_that_are_named_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", _read("Makefile"), re.M))
    pattern = re.compile(r"(?:^ {4}|`)make ([a-z-]+)", re.M)
    named = {(name, target) for name in DOCUMENTS for target in pattern.findall(_read(name))}
    assert len(named) > 5
    assert {(name, target) for name, target in named if target not in targets} == set()


@pytest.mark.parametrize(
    ("name", "rows"), [("ARCHITECTURE.md", 10), ("docs/operate/promises.md", 32), ("docs/guides/host_process.md", 40)]
)
def test_each_promise_names_a_test_that_exists(name: str, rows: int) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", _read(name))
    assert len(named) >= rows
    assert [name for path, name in named if f"def {name}(" not in _read(path)] == []


def test_the_documents_are_as_short_as_promised() -> None:
    sizes = {name: len(_read(name).encode()) for name in _BYTES_MAX}
    assert {name: size for name, size in sizes.items() if size > _BYTES_MAX[name]} == {}


def test_every_decision_is_in_the_table_and_in_the_list() -> None:
    pages = {path.name for path in (ROOT / "docs" / "decisions").glob("[0-9]*.md")}
    listed = re.findall(r"\]\(([^)]+)\)", _read("docs/decisions/index.md"))
    assert pages == set(listed) == set(re.findall(r"\| \[[^]]+\]\(docs/decisions/([^)]+)\)", _read("ARCHITECTURE.md")))


def _examples(name: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", _read(name), re.M | re.S)


@pytest.mark.parametrize(("name", "lines_max"), [("README.md", 12), ("docs/guides/client.md", 21)])
def test_the_client_example_runs(
    name: str, lines_max: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    example = _examples(name)[0]
    assert len(example.splitlines()) <= lines_max
    client, memory = memory_client("acme", "billing", "agent-1")

    def in_memory(**identity: str) -> SessionClient:
        assert identity == {"tenant_id": "acme", "service_id": "billing", "agent_id": "agent-1"}
        return client

    monkeypatch.setattr(sessionary.producers, "SessionClient", in_memory)
    exec(compile(example, name, "exec"), {})
    sent = [event.envelope.event_type for event in memory.events()]
    assert sent[0] == "session_created"
    assert {"usage_recorded", "state_updated", "session_paused", "session_resumed"} <= set(sent)
    assert sent[-1] == "session_terminated"
    capsys.readouterr()


@pytest.mark.parametrize(
    "name",
    [
        *("docs/guides/client.md", "docs/guides/agent-loop.md", "docs/guides/decisions.md"),
        "docs/operate/production.md",
    ],
)
def test_the_other_examples_run(name: str) -> None:
    examples = [example for example in _examples(name) if "import SessionClient" not in example]
    assert examples
    for example in examples:
        exec(compile(example, name, "exec"), {})


@pytest.mark.parametrize(("name", "least"), [("docs/guides/conversation.md", 6), ("docs/guides/replay.md", 4)])
def test_the_examples_of_a_page_run_one_after_the_other(name: str, least: int) -> None:
    names = dict[str, Any]()
    examples = _examples(name)
    assert len(examples) >= least
    for example in examples:
        exec(compile(example, name, "exec"), names)


def test_the_recipe_of_a_chat_works_for_a_user_who_thinks() -> None:
    """From a second to nearly a day pass between two messages, and each reaches another process."""
    name = "docs/learn/adopting.md"
    (recipe,) = (example for example in _examples(name) if "def chat(" in example)
    names: dict[str, Any] = {"ask": lambda messages: f"{len(messages)}"}
    exec(compile(recipe, name, "exec"), names)
    client, memory = memory_client("acme", "billing", "agent-1")
    assert names["chat"](client, "thread 42", "u1", "hi") == "1"
    client.close()
    for place, gap_s in enumerate((1, 61, 361, 3_600, 86_399)):
        memory.advance(gap_s)
        client, _ = memory_client("acme", "billing", "agent-1", memory=memory)
        assert names["chat"](client, "thread 42", "u1", "again") == f"{2 * place + 3}"
        client.close()
    assert memory.view_session("thread 42").state == "Active"
    assert [line for line in memory.audit() if line.due_at] == []
    assert memory.rejections() == []
