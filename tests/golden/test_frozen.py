"""Today's forms are those that the newest release has frozen; of older ones some must stay.

See README.md. The columns: `tests/integration/test_migrated_tables.py`; what the rules decide:
`tests/recorded`.
"""

import copy
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from tests.golden import write
from tests.golden.forms import (
    CODE_FORMS,
    FOLDER,
    NEEDS,
    differences,
    frozen_releases,
    read_forms,
    rule_forms,
    table_forms,
    what_to_do,
    without_types,
)
from tests.style.project import ROOT, pyproject

RELEASES = frozen_releases()
NEWEST = RELEASES[-1]


@pytest.mark.parametrize("kind", CODE_FORMS)
def test_the_forms_of_today_are_those_that_the_newest_release_has_frozen(kind: str) -> None:
    found = differences(read_forms(NEWEST, kind), without_types(CODE_FORMS[kind]()))
    assert found == [], what_to_do(NEWEST, kind)


@pytest.mark.parametrize("release", RELEASES)
def test_the_migrations_and_rules_of_every_release_stay_as_they_were(release: str) -> None:
    for kind, now in (("tables", table_forms()), ("rules", without_types(rule_forms()))):
        frozen = {
            name: form for name, form in read_forms(release, kind).items() if kind == "tables" or "rules " in name
        }
        assert frozen
        assert differences(frozen, {name: now.get(name) for name in frozen}) == [], what_to_do(release, kind)


def test_the_newest_release_is_this_one_and_has_its_date() -> None:
    assert pyproject()["project"]["version"] == NEWEST
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert write.release_date(changelog, NEWEST) is not None
    assert {path.stem for path in (FOLDER / NEWEST).iterdir()} == NEEDS.keys()


CHANGES: dict[str, tuple[str, Any]] = {
    "schemas": ("sessionary.events.SessionActivity", {"fingerprint": "00", "form": "{}"}),
    "bytes": ("SessionActivity", {"bytes": "", "value": {}}),
    "rules": ("rules 2", {"version": 2}),
    "tables": ("0001_tables 1", "CREATE TABLE DB.audit (a String)"),
    "verbs": ("producers.Session.close", "(*, reason) -> None"),
    "commands": ("run compare", ["A str required"]),
    "routes": ("GET /v1/sessions/{session_id}", {}),
}


@pytest.mark.parametrize("kind", CODE_FORMS)
def test_a_change_of_a_form_is_told_with_what_it_needs(kind: str) -> None:
    frozen = read_forms(NEWEST, kind)
    name, changed = CHANGES[kind]
    assert name in frozen, sorted(frozen)[:5]
    (line,) = differences(frozen, {**frozen, name: changed})
    assert line.startswith(f"{name}: is ")
    assert "was" in line
    others = copy.copy(frozen)
    del others[name]
    assert differences(frozen, others) == [f"{name}: gone"]
    assert differences(others, frozen)[0].startswith(f"{name}: new ")
    assert f"the {kind} of {NEWEST} are frozen" in what_to_do(NEWEST, kind)
    assert "python -m tests.golden.write VERSION" in what_to_do(NEWEST, kind)


def test_a_release_is_written_until_its_date_has_passed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changelog = "# Changelog\n\n## 9.9.0 - 2026-11-30\n"
    day, later = date(2026, 11, 30), date(2026, 12, 1)
    assert write.refusal(changelog, "9.9.0", day, is_written=True) is None
    assert write.refusal(changelog, "9.9.0", later, is_written=False) is None
    refused = write.refusal(changelog, "9.9.0", later, is_written=True)
    assert refused is not None
    assert "9.9.0 is frozen since 2026-11-30" in refused
    assert "has no heading '## 9.8.0 - YYYY-MM-DD'" in (write.refusal(changelog, "9.8.0", day, is_written=False) or "")

    (tmp_path / "CHANGELOG.md").write_text(changelog)
    (tmp_path / "9.9.0").mkdir()
    (tmp_path / "9.9.0" / "schemas.json").write_text("kept")
    monkeypatch.setattr(write, "FOLDER", tmp_path)
    monkeypatch.setattr(write, "CHANGELOG", tmp_path / "CHANGELOG.md")
    (tmp_path / "CHANGELOG.md").write_text(changelog.replace("2026", "2020"))
    with pytest.raises(SystemExit, match=r"9\.9\.0 is frozen since 2020-11-30"):
        write.main("9.9.0")
    assert (tmp_path / "9.9.0" / "schemas.json").read_text() == "kept"
