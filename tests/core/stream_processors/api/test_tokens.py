"""Whose token a header has."""

import hashlib
import hmac
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from sessionary.schemas.errors import SettingsError
from sessionary.stream_processors.access import Role, parse_tokens
from sessionary.stream_processors.api.problems import Problem
from sessionary.stream_processors.api.tokens import KnownTokens, TokenStore
from sessionary.stream_processors.metrics import Metrics
from sessionary.stream_processors.settings import ProcessorSettings

KNOWN = KnownTokens(parse_tokens({"token-a": "acme", "token-b": "globex", "schlüssel": "umlaut"}))


@pytest.mark.parametrize(
    ("header", "tenant"),
    [
        ("Bearer token-a", "acme"),
        ("bearer   token-b ", "globex"),
        ("Bearer schlüssel", "umlaut"),
        ("Bearer token-c", None),
        ("Bearer token-a token-a", None),
        ("Bearer", None),
        ("Bearer ", None),
        ("", None),
        ("Basic token-a", None),
        ("token-a", None),
        ("Bearer token-\udcff\udcfe", None),  # as aiohttp decodes bytes that are not UTF-8
    ],
)
def test_a_header_names_the_caller_of_its_token(header: str, tenant: str | None) -> None:
    caller = KNOWN.find_caller(header)
    assert (None if caller is None else caller.tenant) == tenant


def test_no_token_is_known_by_default() -> None:
    assert KnownTokens({}).find_caller("Bearer ") is None


def test_a_look_up_compares_one_digest_however_many_tokens_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    known = KnownTokens(parse_tokens({f"token-{n}": f"tenant-{n}" for n in range(5_000)}))
    compared: list[tuple[bytes, bytes]] = []

    def compare_digest(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return one == other

    monkeypatch.setattr(hmac, "compare_digest", compare_digest)
    caller = known.find_caller("Bearer token-4711")
    assert caller is not None
    assert caller.tenant == "tenant-4711"
    assert compared == [(hashlib.sha256(b"token-4711").digest(),) * 2]


class Bench:
    """A store with one token of the settings, and a file."""

    def __init__(self, folder: Path, tokens: Mapping[str, object]) -> None:
        self.path, self.metrics = folder / "tokens.json", Metrics()
        self.write(json.dumps(tokens))
        settings = ProcessorSettings(api_tokens=parse_tokens({"of-settings": "acme"}), api_tokens_file=self.path)
        self.store = TokenStore(settings, self.metrics)

    def write(self, text: str) -> None:
        """Replace the file as tools do that write atomically."""
        draft = self.path.with_suffix(".new")
        draft.write_text(text)
        draft.replace(self.path)

    def tenant_of(self, token: str) -> str | None:
        try:
            return self.store.require_role(f"Bearer {token}", "reader").tenant
        except Problem:
            return None

    @property
    def failures(self) -> float | None:
        return self.metrics.registry.get_sample_value("sessionary_processor_token_file_failures_total")


def test_tokens_of_the_file_stand_beside_those_of_the_variable_and_win(tmp_path: Path) -> None:
    bench = Bench(tmp_path, {"of-file": "globex"})
    assert (bench.tenant_of("of-settings"), bench.tenant_of("of-file")) == ("acme", "globex")
    bench.write('{"of-settings": "initech"}')
    bench.store.refresh()
    assert (bench.tenant_of("of-settings"), bench.tenant_of("of-file")) == ("initech", None)


def test_a_changed_file_is_read_again_and_an_unchanged_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, {"first": "acme"})
    bench.write('{"second": "globex"}')
    bench.store.refresh()
    assert (bench.tenant_of("first"), bench.tenant_of("second")) == (None, "globex")
    monkeypatch.setattr(Path, "read_bytes", lambda path: pytest.fail(f"{path} is read although it did not change"))
    bench.store.refresh()
    assert bench.tenant_of("second") == "globex"


def test_a_file_that_is_written_in_place_is_read_again_by_its_time(tmp_path: Path) -> None:
    bench = Bench(tmp_path, {"first": "acme"})
    bench.path.write_text('{"other": "acme"}')
    status = bench.path.stat()
    os.utime(bench.path, ns=(status.st_atime_ns, status.st_mtime_ns + 1_000))
    bench.store.refresh()
    assert (bench.tenant_of("first"), bench.tenant_of("other")) == (None, "acme")


@pytest.mark.parametrize("text", ["", '{"s3cret": 7}', '{"first": "acme"', None])
def test_a_file_that_cannot_be_used_keeps_the_last_tokens_and_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str | None
) -> None:
    caplog.set_level(logging.INFO)
    bench = Bench(tmp_path, {"first": "acme"})
    if text is None:
        bench.path.unlink()
    else:
        bench.write(text)
    for _ in range(3):
        bench.store.refresh()
    assert (bench.tenant_of("first"), bench.failures) == ("acme", 3)
    (reported,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert str(bench.path) in reported.getMessage()
    assert "s3cret" not in caplog.text
    bench.write('{"second": "globex"}')
    bench.store.refresh()
    assert (bench.tenant_of("first"), bench.tenant_of("second"), bench.failures) == (None, "globex", 3)
    bench.write("")
    bench.store.refresh()
    assert len([record for record in caplog.records if record.levelno >= logging.ERROR]) == 2, "a new fault is reported"


def test_the_same_file_that_comes_back_is_reported_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    bench = Bench(tmp_path, {"first": "acme"})
    bench.path.rename(tmp_path / "away")
    bench.store.refresh()
    (tmp_path / "away").rename(bench.path)
    bench.store.refresh()
    bench.store.refresh()
    reported = [record for record in caplog.records if record.name.endswith("api.tokens")]
    assert [record.levelname for record in reported] == ["ERROR", "INFO"]


def test_a_worker_does_not_start_without_its_file(tmp_path: Path) -> None:
    settings = ProcessorSettings(api_tokens_file=tmp_path / "none.json")
    with pytest.raises(SettingsError, match=r"SESSIONARY_API_TOKENS_FILE: .*none\.json: No such file or directory"):
        TokenStore(settings, Metrics())
    (tmp_path / "none.json").write_text('{"s3cret": 7}')
    with pytest.raises(SettingsError, match="token 1: must be the name of a tenant") as caught:
        TokenStore(settings, Metrics())
    assert "s3cret" not in str(caught.value)


def test_a_caller_without_the_role_is_forbidden(tmp_path: Path) -> None:
    bench = Bench(tmp_path, {"op": {"principal": "on-call", "roles": ["operator"]}})
    assert bench.store.require_role("Bearer op", "operator").principal == "on-call"
    asked: tuple[tuple[str, Role], ...] = (("op", "reader"), ("of-settings", "operator"))
    for token, role in asked:
        with pytest.raises(Problem) as caught:
            bench.store.require_role(f"Bearer {token}", role)
        assert (caught.value.status, caught.value.reason) == (403, "forbidden")
        assert token not in caught.value.detail
    for header in (None, "Bearer other"):
        with pytest.raises(Problem) as caught:
            bench.store.require_role(header, "operator")
        assert caught.value.status == 401


def test_a_fingerprint_is_that_of_tokens_and_callers_in_any_order_and_repeats_none() -> None:
    both = KnownTokens(parse_tokens({"one": "acme", "two": "globex"})).fingerprint()
    assert both == KnownTokens(parse_tokens({"two": "globex", "one": "acme"})).fingerprint()
    assert both is not None
    assert len(both) == 8
    others = ({"one": "acme"}, {"one": "acme", "two": "acme"}, {"one": "acme", "three": "globex"})
    prints = [KnownTokens(parse_tokens(tokens)).fingerprint() for tokens in others]
    assert len({both, *prints}) == 4
    assert KnownTokens({}).fingerprint() is None


def test_tokens_that_differ_in_the_user_alone_have_another_fingerprint() -> None:
    callers = [{"tenant": "acme", "principal": "app", "user": user} for user in (None, "u1", "u2")]
    assert len({KnownTokens(parse_tokens({"t": caller})).fingerprint() for caller in callers}) == 3
