"""Writes the frozen forms of a release: `python -m tests.golden.write 0.2.0`, until its date.

See README.md. The columns are asked of an engine of this process, which takes some seconds.
"""

import json
import re
import sys
from datetime import UTC, date, datetime
from pathlib import Path

from tests.golden.forms import CODE_FORMS, FOLDER, Forms
from tests.support.view_columns import columns_of_own_engine

CHANGELOG = Path(__file__).parents[2] / "CHANGELOG.md"


def release_date(changelog: str, release: str) -> date | None:
    """Return the date in a release's heading of the changelog; None without one."""
    found = re.search(rf"^## {re.escape(release)} - (\d{{4}}-\d\d-\d\d)$", changelog, re.M)
    return None if found is None else date.fromisoformat(found[1])


def refusal(changelog: str, release: str, today: date, *, is_written: bool) -> str | None:
    """Return why the forms of a release may not be written today; None if they may."""
    dated = release_date(changelog, release)
    if dated is None:
        return f"CHANGELOG.md has no heading '## {release} - YYYY-MM-DD': begin the release with one"
    if is_written and dated < today:
        return (
            f"{release} is frozen since {dated}: its forms never change. Write those of the next release beside them; "
            f"if {release} is not published yet, give it a later date in CHANGELOG.md"
        )
    return None


def write_forms(folder: Path, kind: str, forms: Forms) -> None:
    """Write one file."""
    folder.mkdir(exist_ok=True)
    text = json.dumps(forms, ensure_ascii=False, indent=1, sort_keys=kind != "columns")  # whose order counts
    (folder / f"{kind}.json").write_text(text + "\n", "utf-8")


def main(release: str) -> None:
    """Write all files of a release."""
    folder, today = FOLDER / release, datetime.now(UTC).date()
    why = refusal(CHANGELOG.read_text("utf-8"), release, today, is_written=(folder / "schemas.json").exists())
    if why is not None:
        raise SystemExit(why)
    for kind, read in CODE_FORMS.items():
        write_forms(folder, kind, read())
    write_forms(folder, "columns", columns_of_own_engine())
    sys.stdout.write(f"wrote the forms of {release} into {folder}\n")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("name the release: python -m tests.golden.write 0.2.0")
    main(sys.argv[1])
