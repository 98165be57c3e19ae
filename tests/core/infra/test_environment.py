"""How a command finds its stack."""

import errno
import json
import os
import stat
from pathlib import Path

import pytest

from sessionary.infra.environment import (
    keep_secret,
    make_signing_keys,
    read_environment,
    stack_environment,
    tenant_tokens,
    write_environment,
)
from sessionary.infra.stack import Stack
from sessionary.schemas.errors import SettingsError
from sessionary.schemas.signatures import parse_signing_keys

SERVED = {"SESSIONARY_BOOTSTRAP_SERVERS": "127.0.0.1:1", "SESSIONARY_PARTITIONS": "8"}


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that a stack has served, beside the working folder."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "stack"
    folder.mkdir()
    write_environment(folder, SERVED)
    return folder


def test_a_named_folder_rules_over_the_environment(served: Path) -> None:
    ours = {"SESSIONARY_BOOTSTRAP_SERVERS": "elsewhere:1", "HOME": "/home"}
    assert stack_environment(served, ours) == {**SERVED, "HOME": "/home"}


def test_a_named_folder_without_a_stack_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="sessionary up"):
        stack_environment(tmp_path, {})


def test_an_address_in_the_environment_rules_over_the_default_folder(served: Path) -> None:
    served.rename(served.parent / ".sessionary")
    ours = {"SESSIONARY_CLICKHOUSE_URL": "http://elsewhere:1"}
    assert stack_environment(None, ours) == ours
    assert stack_environment(None, {"SESSIONARY_TOPIC_PREFIX": "x"}) == {**SERVED, "SESSIONARY_TOPIC_PREFIX": "x"}


def test_without_any_stack_the_environment_is_all_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert stack_environment(None, {"A": "b"}) == {"A": "b"}


def test_the_file_is_for_its_owner_only(served: Path) -> None:
    assert stat.S_IMODE((served / "env.json").stat().st_mode) == 0o600
    assert read_environment(served) == SERVED


@pytest.mark.parametrize("text", ["", "[]", "{"])
def test_a_file_of_another_format_is_an_error(served: Path, text: str) -> None:
    (served / "env.json").write_text(text)
    with pytest.raises(SettingsError):
        read_environment(served)


@pytest.mark.parametrize("form", [{}, {"form": "0"}])
def test_a_folder_of_another_form_is_refused_and_left_alone(served: Path, form: dict[str, str]) -> None:
    older = json.dumps({**SERVED, **form})
    (served / "env.json").write_text(older)
    for use in (lambda: stack_environment(served, {}), lambda: Stack(served)):
        with pytest.raises(SettingsError, match=r"of another version of sessionary.* move the folder away"):
            use()
    assert [path.name for path in served.iterdir()] == ["env.json"]
    assert (served / "env.json").read_text() == older


def test_tokens_are_read_by_tenant() -> None:
    assert tenant_tokens({"SESSIONARY_API_TOKENS": '{"secret": "acme"}'}) == {"acme": "secret"}
    assert tenant_tokens({}) == {}
    operator = '{"a": {"tenant": "acme", "principal": "on-call", "roles": ["operator"]}, "b": {"tenant": "globex"}}'
    assert tenant_tokens({"SESSIONARY_API_TOKENS": operator}) == {"globex": "b"}, "an operator reads no session"
    for text in ("nonsense", "[]"):
        with pytest.raises(SettingsError):
            tenant_tokens({"SESSIONARY_API_TOKENS": text})


def test_a_folder_keeps_its_secret_for_its_owner_alone(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    secret = keep_secret(folder, "SESSIONARY_CLICKHOUSE_PASSWORD")
    assert len(secret) >= 32
    assert keep_secret(folder, "SESSIONARY_CLICKHOUSE_PASSWORD") == secret
    assert keep_secret(tmp_path / "other", "SESSIONARY_CLICKHOUSE_PASSWORD") != secret
    assert stat.S_IMODE((folder / "env.json").stat().st_mode) == 0o600


def test_signing_keys_are_made_once_random_and_for_their_owner_only(tmp_path: Path) -> None:
    path, other = tmp_path / "keys.json", tmp_path / "other.json"
    assert make_signing_keys(path)
    made = path.read_bytes()
    assert len(parse_signing_keys(made)) == 1
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not make_signing_keys(path)
    assert path.read_bytes() == made
    assert make_signing_keys(other)
    assert parse_signing_keys(other.read_bytes()).items().isdisjoint(parse_signing_keys(made).items())
    with pytest.raises(SettingsError, match="the signing keys cannot be written"):
        make_signing_keys(tmp_path / "nowhere" / "keys.json")


def test_a_full_disk_leaves_no_half_file_of_signing_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a file would never be made again, and no role would start with it."""
    path = tmp_path / "keys.json"

    def fail(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(os, "fsync", fail)
        with pytest.raises(SettingsError, match=r"the signing keys cannot be written: .*No space left"):
            make_signing_keys(path)
    assert list(tmp_path.iterdir()) == []
    assert make_signing_keys(path)
    assert list(tmp_path.iterdir()) == [path]


def test_of_two_that_make_signing_keys_at_once_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, sync, made = tmp_path / "keys.json", os.fsync, list[bytes]()

    def lose_race(descriptor: int) -> None:
        sync(descriptor)
        if not made:
            made.append(b"")
            assert make_signing_keys(path)
            made[0] = path.read_bytes()

    monkeypatch.setattr(os, "fsync", lose_race)
    assert not make_signing_keys(path)
    assert [path.read_bytes()] == made
    assert list(tmp_path.iterdir()) == [path]


def test_a_stack_keeps_the_place_of_its_signing_keys(tmp_path: Path) -> None:
    stack = Stack(tmp_path / "data")
    assert stack.environ["SESSIONARY_SIGNING_KEYS_FILE"] == str(stack.data / "signing-keys.json")
