"""Another commit's files, and how they are found."""

import os
import tarfile
from pathlib import Path

import pytest

from benchmarks.measurements import base_commit
from benchmarks.measurements.base_commit import check_tree, tree_path, unpack_commit


def test_an_unknown_commit_is_named(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="there is no commit no-such-commit"):
        unpack_commit("no-such-commit", tmp_path / "base")


def test_a_commit_is_unpacked_beside_the_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    packed: list[tuple[str, ...]] = []

    def run_git(*words: str) -> str:
        packed.append(words)
        if words[0] == "archive":
            (tmp_path / "README.md").write_text("of the base")
            with tarfile.open(words[2].removeprefix("--output="), "w") as archive:
                archive.add(tmp_path / "README.md", "README.md")
        return "0123456789ab"

    monkeypatch.setattr(base_commit, "run_git", run_git)
    assert unpack_commit("main", tmp_path / "base") == "0123456789ab"
    assert packed[0][-1] == "main^{commit}"
    assert packed[1][-1] == "0123456789ab"
    assert [path.name for path in (tmp_path / "base").iterdir()] == ["README.md"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["README.md", "base"]


@pytest.mark.parametrize("fails", [False, True])
def test_the_codec_of_a_commit_is_made_as_its_installation_would(
    fails: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text("from pathlib import Path\nPath('made').touch()\n" + "raise SystemExit('bad schema')\n" * fails)

    def run_git(*words: str) -> str:
        if words[0] == "archive":
            with tarfile.open(words[2].removeprefix("--output="), "w") as archive:
                archive.add(program, "generation/__main__.py")
        return "0123456789ab"

    monkeypatch.setattr(base_commit, "run_git", run_git)
    if fails:
        with pytest.raises(RuntimeError, match="bad schema"):
            unpack_commit("main", tmp_path / "base")
    else:
        unpack_commit("main", tmp_path / "base")
    assert (tmp_path / "base" / "made").exists()


def test_a_trees_packages_come_first() -> None:
    folders = tree_path(Path("/tree")).split(os.pathsep)
    assert folders[0] == "/tree"
    assert "/tree/stream_processors" in folders


def test_figures_of_another_tree_are_refused_and_no_path_stays_in_them(tmp_path: Path) -> None:
    figures = {"cpu_us": 1.0, "client": str(tmp_path / "producers" / "__init__.py")}
    check_tree(figures, "client", tmp_path)
    assert figures == {"cpu_us": 1.0}
    with pytest.raises(RuntimeError, match=r"the client of /elsewhere/x\.py was measured, not that of"):
        check_tree({"client": "/elsewhere/x.py"}, "client", tmp_path)
