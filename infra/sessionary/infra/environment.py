"""How a command finds its stack: by `SESSIONARY_*` variables, or by the file that `sessionary up` writes.

`<data>/env.json` holds the variables of the stack that serves that folder. `--data DIR` names it, and then it rules;
without `--data` the variables of the environment rule, over `./.sessionary/env.json` where that exists and the
environment names neither a broker nor a ClickHouse.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from sessionary.schemas.errors import SettingsError
from sessionary.schemas.settings import ENV_PREFIX

DEFAULT_DATA = Path(".sessionary")
_FILE = "env.json"
_ADDRESSES = (ENV_PREFIX + "BOOTSTRAP_SERVERS", ENV_PREFIX + "CLICKHOUSE_URL")


def write_environment(data: Path, environ: Mapping[str, str]) -> None:
    """Write the stack's variables; only the owner may read them, as tokens are among them."""
    draft = data / f"{_FILE}.new"
    draft.touch(mode=0o600)
    draft.write_text(json.dumps(dict(environ), indent=1) + "\n")
    draft.replace(data / _FILE)


def read_environment(data: Path) -> dict[str, str]:
    """Read them; empty where there is no file. Raises `SettingsError` for a file that is none of ours."""
    path = data / _FILE
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path} cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise SettingsError(f"{path} holds no variables")
    return {str(name): str(value) for name, value in found.items()}


def stack_environment(data: Path | None, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables that a command works with. Raises `SettingsError` where `data` names no stack."""
    ours = dict(os.environ if environ is None else environ)
    if data is not None:
        found = read_environment(data)
        if not found:
            raise SettingsError(f"no stack has served {data}: start one by: sessionary up --data {data}")
        return {**ours, **found}
    if any(name in ours for name in _ADDRESSES):
        return ours
    return {**read_environment(DEFAULT_DATA), **ours}


def tenant_tokens(environ: Mapping[str, str]) -> dict[str, str]:
    """Return tenant → bearer token, from the processor's token → tenant. Raises `SettingsError`."""
    text = environ.get(ENV_PREFIX + "API_TOKENS", "{}")
    try:
        tokens = json.loads(text)
        return {str(tenant): str(token) for token, tenant in tokens.items()}
    except (ValueError, AttributeError):
        raise SettingsError(f"{ENV_PREFIX}API_TOKENS must be a JSON object {{token: tenant}}") from None


__all__ = ["DEFAULT_DATA", "read_environment", "stack_environment", "tenant_tokens", "write_environment"]
