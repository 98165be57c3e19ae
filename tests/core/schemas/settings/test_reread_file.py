from pathlib import Path

import pytest

from sessionary.schemas.settings.reread_file import RereadFile


def test_a_file_is_read_once_per_change_and_until_it_can_be_used(tmp_path: Path) -> None:
    path = tmp_path / "number"
    file = RereadFile(path, int)
    with pytest.raises(FileNotFoundError):
        file.read_if_changed()
    path.write_bytes(b"7")
    assert [file.read_if_changed(), file.read_if_changed()] == [7, None]
    path.write_bytes(b"seven")
    for _ in range(2):
        with pytest.raises(ValueError, match="seven"):
            file.read_if_changed()
    path.write_bytes(b"0")
    assert [file.read_if_changed(), file.read_if_changed()] == [0, None]
