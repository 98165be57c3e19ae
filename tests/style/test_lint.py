"""Format, lint and types: `make lint` and `make lint-foreign`, as tests beside the others."""

import os
import re
import subprocess

import pytest

from tests.style.project import ROOT

# Of the make that runs the tests: its options and its job server are not for this one.
_OF_THE_OUTER_MAKE = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES")

# It computes for a minute: half an hour on a machine that has twenty other things to do.
pytestmark = pytest.mark.timeout(3_600)


def _make(target: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in _OF_THE_OUTER_MAKE}
    return subprocess.run(["make", target], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_format_lint_and_types_have_no_complaint() -> None:
    done = _make("lint")
    assert done.returncode == 0, done.stdout + done.stderr


def test_types_hold_on_foreign_platforms() -> None:
    done = _make("lint-foreign")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("target", "expected"),
    [("lint", ["ruff format --check", "ruff check", "mypy", "pyright"]), ("lint-foreign", ["mypy"])],
)
def test_lint_checks_everything(target: str, expected: list[str]) -> None:
    """Each command ends the recipe if it fails: none is behind a `-`, a `;` or an `|| true`."""
    makefile = (ROOT / "Makefile").read_text()
    recipe = re.search(rf"^{target}: \$\(DEV\)\n((?:\t.*\n)+)", makefile, re.M)
    assert recipe is not None
    assert re.findall(r"\$\(BIN\)/(\w+(?: check| format --check)?)", recipe[1]) == expected
    assert re.findall(r"^\t-|\|\| (?:true|:)", recipe[1], re.M) == []
