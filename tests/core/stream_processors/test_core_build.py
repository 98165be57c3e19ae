"""How the interpreter was built is read from its own configuration."""

import sysconfig

import pytest

from sessionary.stream_processors.core_build import interpreter_build


@pytest.mark.parametrize(
    ("arguments", "reported"),
    [
        ("'--enable-optimizations' '--with-lto' '--prefix=/usr'", "PGO and LTO"),
        ("'--enable-optimizations'", "PGO"),
        ("'--with-lto=full'", "LTO"),
        ("'--enable-shared'", "neither PGO nor LTO"),
        (None, "neither PGO nor LTO"),
    ],
)
def test_it_is_read_from_what_configure_was_given(
    arguments: str | None, reported: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sysconfig, "get_scheme_names", lambda: ("posix_prefix", "venv"))
    monkeypatch.setattr(sysconfig, "get_config_var", {"CONFIG_ARGS": arguments}.get)
    assert interpreter_build() == reported


def test_a_distribution_that_does_not_tell_configure_is_known_by_its_install_scheme(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sysconfig, "get_scheme_names", lambda: ("deb_system", "posix_local", "posix_prefix"))
    monkeypatch.setattr(sysconfig, "get_config_var", {"CONFIG_ARGS": "'--enable-shared'"}.get)
    assert interpreter_build() == "PGO and LTO"
