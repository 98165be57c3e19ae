"""Format, lint and types: `make lint`, as a test beside the others."""

import os
import re
import subprocess

import pytest

from tests.style.project import ROOT

# Of the make that runs the tests: its options and its job server are not for this one.
_OF_THE_OUTER_MAKE = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES")


# It computes for a minute or two: half an hour on a machine that has twenty other things to do.
@pytest.mark.timeout(3_600)
def test_format_lint_and_types_have_no_complaint() -> None:
    environment = {name: value for name, value in os.environ.items() if name not in _OF_THE_OUTER_MAKE}
    done = subprocess.run(["make", "lint"], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_lint_checks_everything() -> None:
    """Each command ends the recipe if it fails: none is behind a `-`, a `;` or an `|| true`."""
    makefile = (ROOT / "Makefile").read_text()
    recipe = re.search(r"^lint: \$\(DEV\)\n((?:\t.*\n)+)", makefile, re.M)
    assert recipe is not None
    commands = re.findall(r"\$\(BIN\)/(\w+(?: check| format --check)?)", recipe[1])
    assert commands == ["ruff format --check", "ruff check", "mypy", "mypy", "pyright"]
    assert re.findall(r"^\t-|\|\| (?:true|:)", recipe[1], re.M) == []
