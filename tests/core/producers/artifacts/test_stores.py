"""Both kinds of store behave alike; `memory:` and `file:` stand for what fsspec can reach."""

import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from sessionary.producers.artifacts import ArtifactStore, FolderStore, FsspecStore, open_store
from sessionary.producers.errors import ArtifactMissing, SettingsError, Unavailable

STORES: dict[str, Callable[[Path], ArtifactStore]] = {
    "folder": lambda folder: FolderStore(folder / "bodies"),
    "fsspec, memory": lambda folder: FsspecStore(f"memory://{uuid.uuid4()}"),
    "fsspec, local": lambda folder: FsspecStore(f"local://{folder}/bodies"),
}


@pytest.fixture(params=STORES, ids=str)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ArtifactStore:
    return STORES[request.param](tmp_path)


def test_a_body_is_read_as_it_was_written_last(store: ArtifactStore) -> None:
    assert not store.has("a/b/c")
    store.write("a/b/c", b"first")
    store.write("a/b/c", b"\x00second")
    assert store.has("a/b/c")
    assert store.read("a/b/c") == b"\x00second"
    assert store.uri("a/b/c").endswith("a/b/c")


def test_names_of_a_folder_are_sorted_and_none_if_it_is_missing(store: ArtifactStore) -> None:
    assert store.names("streams/x") == []
    for name in ("0002", "0001", "0010"):
        store.write(f"streams/x/{name}", b"-")
    assert store.names("streams/x") == ["0001", "0002", "0010"]
    store.remove("streams/x/0002")
    store.remove("streams/x/0002")
    assert store.names("streams/x") == ["0001", "0010"]


def test_a_missing_body_is_named(store: ArtifactStore) -> None:
    with pytest.raises(ArtifactMissing, match="nothing/here") as raised:
        store.read("nothing/here")
    assert raised.value.uri == store.uri("nothing/here")


def test_a_folder_that_cannot_be_written_is_unavailable(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")
    for store in (FolderStore(blocked), FsspecStore(f"local://{blocked}")):
        with pytest.raises(Unavailable, match="file/a"):
            store.write("a", b"-")


def test_a_writer_that_dies_leaves_no_body(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(source: Path, target: Path) -> None:
        raise KeyboardInterrupt

    store = FolderStore(tmp_path)
    monkeypatch.setattr(Path, "replace", die)
    with pytest.raises(KeyboardInterrupt):
        store.write("a/b", b"-")
    assert (store.has("a/b"), store.names("a"), list((tmp_path / "a").iterdir())) == (False, [], [])


def test_a_place_says_which_store_it_is(tmp_path: Path) -> None:
    for place in (tmp_path, str(tmp_path), tmp_path.as_uri()):
        found = open_store(place)
        assert isinstance(found, FolderStore)
        assert found.uri("a") == (tmp_path / "a").as_uri()
    assert isinstance(open_store("memory://artifacts"), FsspecStore)


def test_a_url_that_nobody_knows_is_a_settings_error() -> None:
    with pytest.raises(SettingsError, match="nowhere://x"):
        open_store("nowhere://x")


def test_without_fsspec_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "fsspec.core", None)
    with pytest.raises(SettingsError, match=r"pip install 'sessionary\[artifacts\]'"):
        open_store("s3://bucket/artifacts")
