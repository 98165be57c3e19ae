"""The caller of a request, by its token. Pure."""

import hashlib
import hmac
from collections.abc import Mapping

from sessionary.schemas.errors import SettingsError, cause_text
from sessionary.schemas.settings.env_settings import RereadFile
from sessionary.schemas.telemetry.role_logs import error_fields, role_logger
from sessionary.stream_processors.access import Caller, Role, parse_tokens
from sessionary.stream_processors.api.problems import Problem
from sessionary.stream_processors.metrics import Metrics
from sessionary.stream_processors.settings import ProcessorSettings


class KnownTokens:
    """Callers by the SHA-256 digest of their token. Immutable.

    The time of a look-up reveals nothing about known tokens, and does not grow with their number.
    """

    def __init__(self, tokens: Mapping[str, Caller]) -> None:
        self._callers = {
            digest: (digest, caller) for token, caller in tokens.items() for digest in [_digest_token(token)]
        }

    def __len__(self) -> int:
        return len(self._callers)

    def find_caller(self, authorization: str) -> Caller | None:
        """Return the caller of an `Authorization` header's bearer token; None without a known one.

        A header's bytes that are not UTF-8 are surrogates, as aiohttp decodes them.
        """
        scheme, _, token = authorization.partition(" ")
        given = _digest_token(token.strip())
        known, caller = self._callers.get(given, (b"", None))
        return caller if scheme.lower() == "bearer" and hmac.compare_digest(known, given) else None

    def fingerprint(self) -> str | None:
        """Return 8 hexadecimal digits, too few to find a token by; None without a token."""
        known = sorted(
            (digest.hex(), caller.tenant or "", caller.user or "", caller.principal, *sorted(caller.roles))
            for digest, caller in self._callers.values()
        )
        return hashlib.sha256(repr(known).encode()).hexdigest()[:8] if known else None


def _digest_token(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogateescape")).digest()


# The tokens in force: those of the settings, and those of a file that is read again if it changes.
#
# So a new tenant needs no restart, and the number of tokens has no limit: Linux limits a variable
# to 128 kB and shows it in /proc.


_log = role_logger(__name__)


class TokenStore:
    """Knows whose token a request has. A token in the file wins over the same one in the settings.

    `refresh` may run on any one thread; requests are answered with the former tokens meanwhile.
    """

    def __init__(self, settings: ProcessorSettings, metrics: Metrics) -> None:
        """Read the file; this blocks. Raises `SettingsError` if the file cannot be used."""
        self._of_settings = settings.api_tokens
        path = settings.api_tokens_file
        self._file = None if path is None else RereadFile(path, parse_tokens)
        self._metrics = metrics
        self._known = KnownTokens(self._of_settings)
        self._has_failed = False
        if self._file is not None:
            try:
                self._read_if_changed(self._file)
            except (OSError, ValueError) as error:
                raise SettingsError(f"SESSIONARY_API_TOKENS_FILE: {path}: {cause_text(error)}") from None

    def refresh(self) -> None:
        """Read the file again if it changed. Blocks.

        If it cannot be used, the last good tokens stay in force; that is logged once, counted at
        each attempt, and tried again at the next call.
        """
        if self._file is None:
            return
        try:
            changed = self._read_if_changed(self._file)
        except (OSError, ValueError) as error:
            self._metrics.token_file_failures.inc()
            if not self._has_failed:
                self._has_failed = True
                _log.error(
                    "the token file %(path)s cannot be used, the tokens that were read last stay in force: %(error)s",
                    path=self._file.path,
                    **{**error_fields(error), "error": cause_text(error)},
                )
            return
        if changed or self._has_failed:
            self._has_failed = False
            _log.info(
                "%(tokens)d tokens are in force, with those of %(path)s", tokens=len(self._known), path=self._file.path
            )

    def fingerprint(self) -> str | None:
        """Return a short text, the same for the same tokens and callers; None without any."""
        return self._known.fingerprint()

    def find_caller(self, authorization: str | None) -> Caller | None:
        """Return the caller that an `Authorization` header names; None without a known token."""
        return self._known.find_caller(authorization or "")

    def require_role(self, authorization: str | None, role: Role) -> Caller:
        """Return the caller that an `Authorization` header names.

        Raises `Problem`: 401 without a known token, 403 if the caller does not have the role.
        """
        caller = self.find_caller(authorization)
        if caller is None:
            detail = "send a known token as Authorization: Bearer …"
            raise Problem(401, "unauthorized", "Unauthorized", detail, {"WWW-Authenticate": "Bearer"})
        if role not in caller.roles:
            detail = f"principal {caller.principal!r} does not have the role {role}"
            raise Problem(403, "forbidden", "Forbidden", detail)
        return caller

    def require_pipeline_operator(self, authorization: str | None) -> Caller:
        """Return the caller, who may run commands on partitions and rules.

        Raises `Problem` as `require_role` does, and 403 for a token of a user.
        """
        caller = self.require_role(authorization, "operator")
        if caller.user is not None:
            detail = f"the token of principal {caller.principal!r} is for one user's sessions only"
            raise Problem(403, "forbidden", "Forbidden", detail)
        return caller

    def _read_if_changed(self, file: RereadFile[dict[str, Caller]]) -> bool:
        """Return whether the file was read. Raises `OSError`, `ValueError`."""
        tokens = file.read_if_changed()
        if tokens is None:
            return False
        self._known = KnownTokens({**self._of_settings, **tokens})
        return True
