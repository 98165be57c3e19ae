"""Finds a command's stack: by `SESSIONARY_*` variables, or by the file of `sessionary up`.

`<data>/env.json` holds the variables of the stack that serves that folder.

- With `--data DIR`, the variables of DIR/env.json override the environment.
- Without `--data`, if the environment names a broker or a ClickHouse, it is used alone.
- Otherwise the environment overrides ./.sessionary/env.json, if that file exists.

The file also has the form of the folder's data. A folder of another form is refused.
"""

import fcntl
import json
import os
import secrets
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from sessionary.schemas.errors import SettingsError
from sessionary.schemas.settings import ENV_PREFIX, read_variables
from sessionary.schemas.tls import context_for
from sessionary.schemas.types import DataClass
from sessionary.stream_processors.access import parse_tokens

# The tenants of the local stack and the demo. Pure.


class Tenant(NamedTuple):
    """A tenant: its services, and the classes of data that its sessions handle."""

    services: tuple[str, ...]
    data_classes: tuple[DataClass, ...]


# A service belongs to exactly one tenant.
TENANTS: dict[str, Tenant] = {
    "acme": Tenant(("research", "support"), ("personal",)),
    "globex": Tenant(("billing",), ("financial", "personal")),
    "initech": Tenant(("coding",), ("none",)),
}


DEFAULT_DATA = Path(".sessionary")
LOCK_FILE = "lock"  # locked while a stack runs over the folder
_FILE = "env.json"
_FORM = "form"  # no variable; the others begin with SESSIONARY_
_FORM_NOW = "1"  # a new number when the topics or tables of a folder cannot be used any more
_ADDRESSES = (ENV_PREFIX + "BOOTSTRAP_SERVERS", ENV_PREFIX + "CLICKHOUSE_URL")


def write_environment(data: Path, environ: Mapping[str, str]) -> None:
    """Write the stack's variables. Only the owner may read the file, because it holds secrets."""
    draft = data / f"{_FILE}.new"
    draft.touch(mode=0o600)
    draft.write_text(json.dumps({_FORM: _FORM_NOW, **environ}, indent=1) + "\n")
    draft.replace(data / _FILE)


def read_environment(data: Path) -> dict[str, str]:
    """Return the folder's variables; empty if there is no file.

    Raises `SettingsError`, also for a folder of another form.
    """
    path = data / _FILE
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path} cannot be read: {error}; sessionary up writes it again") from None
    if not isinstance(found, dict):
        raise SettingsError(f"{path} is no JSON object of variables; sessionary up writes it again")
    if found.pop(_FORM, None) != _FORM_NOW:
        raise SettingsError(
            f"{data.absolute()} holds the data of a stack of another version of sessionary, in a form that this one "
            "does not read. Nothing in it was changed: move the folder away, or name another by --data"
        )
    return {str(name): str(value) for name, value in found.items()}


def keep_secret(data: Path, name: str) -> str:
    """Return the folder's secret of this name; the first call makes a random one and keeps it.

    Raises `SettingsError`, `OSError`.
    """
    known = read_environment(data)
    if not known.get(name):
        data.mkdir(parents=True, exist_ok=True)
        known[name] = secrets.token_urlsafe(24)
        write_environment(data, known)
    return known[name]


def make_signing_keys(path: Path) -> bool:
    """Write a file with one random signing key, unless there is a file; return whether it was made.

    Only the owner may read it. It appears whole: a draft is written, and linked to its name, which
    one of several processes can do. Raises `SettingsError` if it cannot be written.
    """
    if path.exists():
        return False
    draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}.new")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(json.dumps({f"k{secrets.token_hex(4)}": secrets.token_urlsafe(32)}, indent=1) + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.link(draft, path)
    except FileExistsError:
        return False
    except OSError as error:
        raise SettingsError(f"the signing keys cannot be written: {error}") from None
    finally:
        draft.unlink(missing_ok=True)
    return True


def stack_environment(data: Path | None, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables for a command; `environ` is by default the process's environment.

    Those that are settings are as `read_variables` reads them. Raises `SettingsError` if `data` is
    given and no stack has served it.
    """
    given = os.environ if environ is None else environ
    ours = {name: value for name, value in given.items() if not name.startswith(ENV_PREFIX)} | read_variables(given)
    if data is not None:
        found = read_environment(data)
        if not found:
            raise SettingsError(f"no stack has served {data}; start one: sessionary up --data {data}")
        return {**ours, **found}
    if names_servers(ours):
        return ours
    return {**read_environment(DEFAULT_DATA), **ours}


def names_servers(environ: Mapping[str, str]) -> bool:
    """Return whether variables name a broker or a ClickHouse, so that no file is asked for them."""
    return any(name in environ for name in _ADDRESSES)


def client_environment(data: Path, tenant: str | None = None) -> dict[str, str]:
    """Return the variables of a folder's stack, with a client's token for the control API.

    `tenant`: the token's tenant; by default the first one that has a token. Raises `SettingsError`
    if no stack has served the folder, or if it has no such tenant.
    """
    found = read_environment(data)
    if not names_servers(found):
        raise SettingsError(f"no stack has served {data}; start one: sessionary up --data {data}")
    tokens = tenant_tokens(found)
    if tenant is not None and tenant not in tokens:
        raise SettingsError(f"the stack of {data} has no token for tenant {tenant}; it has {', '.join(tokens)}")
    token = tokens[tenant] if tenant is not None else next(iter(tokens.values()), None)
    return found if token is None else {**found, ENV_PREFIX + "API_TOKEN": token}


def stack_is_running(data: Path) -> bool:
    """Return whether a process of this machine serves the folder."""
    try:
        with (data / LOCK_FILE).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False


def control_api_context(environ: Mapping[str, str], url: str) -> ssl.SSLContext | None:
    """Return the context for requests to the control API at `url`; None if it is plain HTTP.

    Raises `SettingsError` if the file of authorities cannot be read.
    """
    name = ENV_PREFIX + "CONTROL_CA_LOCATION"
    return context_for(url, name, environ.get(name))


def tenant_tokens(environ: Mapping[str, str]) -> dict[str, str]:
    """Return `{tenant: bearer token}` of the processor's tokens that may read sessions.

    Raises `SettingsError`.
    """
    name = ENV_PREFIX + "API_TOKENS"
    try:
        callers = parse_tokens(environ.get(name, "{}"))
    except ValueError as error:
        raise SettingsError(f"{name}: {error}") from None
    return {caller.tenant: token for token, caller in callers.items() if caller.tenant and "reader" in caller.roles}
