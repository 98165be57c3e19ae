"""The file of tenants' limits: what it may hold, and that it is read again if it changes."""

from pathlib import Path

import pytest

from sessionary.schemas.errors import SettingsError
from sessionary.stream_processors.core.quota.limits import HOLDERS_MAX, TenantLimits
from sessionary.stream_processors.quotas.settings import LimitsFile, parse_limits


def test_what_a_tenant_leaves_out_is_the_default() -> None:
    default, tenants = parse_limits(
        b'{"default": {"concurrent_runs": 20, "over": "reject"}, "tenants": {"acme": {"concurrent_runs": 3}}}'
    )
    assert default == TenantLimits(20, "reject")
    of_sessions, _ = parse_limits(b'{"default": {"live_sessions": 7}}')
    assert of_sessions == TenantLimits(HOLDERS_MAX, "queue", 7)
    assert (of_sessions.slots_of("live_sessions"), of_sessions.slots_of("concurrent_runs")) == (7, HOLDERS_MAX)
    assert tenants == {"acme": TenantLimits(3, "reject")}
    assert parse_limits(b"{}") == (TenantLimits(HOLDERS_MAX, "queue"), {})


def test_tokens_have_no_limit_unless_one_is_set() -> None:
    default, tenants = parse_limits(
        b'{"default": {"tokens": 9, "token_window_s": 86400}, "tenants": {"acme": {"tokens": null}, "zeta": {}}}'
    )
    assert (default.tokens, default.token_window_s) == (9, 86_400)
    assert tenants == {"acme": default._replace(tokens=None), "zeta": default}
    assert parse_limits(b"{}")[0][-2:] == (None, 3_600)


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ("{}", False),
        ('{"default": {"token_window_s": 60}}', False),
        ('{"default": {"tokens": 0}}', True),
        ('{"tenants": {"acme": {"tokens": 1000}}}', True),
    ],
)
def test_a_file_tells_if_it_limits_tokens(text: str, limits: bool, tmp_path: Path) -> None:
    path = tmp_path / "quotas.json"
    path.write_text(text)
    assert LimitsFile(path).limits_tokens == limits


@pytest.mark.parametrize(
    ("source", "what"),
    [
        (b"[", "no JSON"),
        (b"[]", "use {"),
        (b'{"limits": {}}', "use {"),
        (b'{"tenants": []}', "use {"),
        (b'{"tenants": {"a b": {}}}', "'a b' is no name of a tenant"),
        (b'{"default": {"runs": 3}}', "default: the limits are concurrent_runs, over, live_sessions, tokens, tok"),
        (b'{"tenants": {"acme": 3}}', "tenant acme: the limits are"),
        (b'{"default": {"concurrent_runs": -1}}', "from 0 to 5000, not -1"),
        (b'{"default": {"concurrent_runs": 5001}}', "not 5001"),
        (b'{"default": {"concurrent_runs": true}}', "not True"),
        (b'{"default": {"live_sessions": 1.5}}', "default: live_sessions is a number from 0 to 5000, not 1.5"),
        (b'{"default": {"tokens": -1}}', "default: tokens is a number from 0 to 1000000000000000, or null "),
        (b'{"default": {"tokens": "9"}}', "or null for no limit, not '9'"),
        (b'{"default": {"token_window_s": 0}}', "default: token_window_s is a number from 1 to 86400, not 0"),
        (b'{"default": {"token_window_s": 86401}}', "not 86401"),
        (b'{"default": {"token_window_s": null}}', "not None"),
        (b'{"default": {"over": "drop"}}', "over is queue or reject, not 'drop'"),
    ],
)
def test_a_wrong_file_is_reported_by_its_fault(source: bytes, what: str, tmp_path: Path) -> None:
    path = tmp_path / "quotas.json"
    path.write_bytes(source)
    with pytest.raises(SettingsError) as raised:
        LimitsFile(path)
    assert str(raised.value).startswith(f"SESSIONARY_QUOTAS_FILE: {path}: ")
    assert what in str(raised.value)


def test_a_changed_file_is_read_again_and_a_wrong_one_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "quotas.json"
    path.write_text('{"default": {"concurrent_runs": 1}}')
    limits = LimitsFile(path)
    _replace(path, '{"default": {"concurrent_runs": 2}}')
    limits.refresh()
    assert limits.limits_of("acme").concurrent_runs == 2
    _replace(path, "{")
    for _ in range(3):
        limits.refresh()
    assert limits.limits_of("acme").concurrent_runs == 2
    assert [record.levelname for record in caplog.records].count("ERROR") == 1
    path.unlink()
    limits.refresh()
    assert limits.limits_of("acme").concurrent_runs == 2
    _replace(path, '{"tenants": {"acme": {"concurrent_runs": 4}}}')
    limits.refresh()
    assert limits.limits_of("acme").concurrent_runs == 4
    assert limits.limits_of("other").concurrent_runs == HOLDERS_MAX


def _replace(path: Path, text: str) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(path)


def test_without_a_file_no_tenant_has_a_limit() -> None:
    limits = LimitsFile(None)
    limits.refresh()
    assert limits.limits_of("acme") == TenantLimits(HOLDERS_MAX, "queue")


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ("{}", False),
        ('{"tenants": {"acme": {"concurrent_runs": 1}}}', False),
        ('{"default": {"live_sessions": 4}}', True),
        ('{"tenants": {"acme": {"live_sessions": 4999}}}', True),
    ],
)
def test_it_is_known_whether_a_file_limits_sessions(text: str, limits: bool, tmp_path: Path) -> None:
    path = tmp_path / "quotas.json"
    path.write_text(text)
    assert LimitsFile(path).limits_sessions is limits
