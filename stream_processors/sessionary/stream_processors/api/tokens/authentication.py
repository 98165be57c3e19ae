"""Which caller the token of a request stands for. Pure."""

import hashlib
import hmac
from collections.abc import Mapping

from sessionary.stream_processors.access import Caller


class KnownTokens:
    """Callers by the SHA-256 digest of their token. Immutable.

    The time of a look-up tells nothing about known tokens, and does not grow with their number.
    """

    def __init__(self, tokens: Mapping[str, Caller]) -> None:
        self._callers = {
            digest: (digest, caller) for token, caller in tokens.items() for digest in [_digest_token(token)]
        }

    def __len__(self) -> int:
        return len(self._callers)

    def find_caller(self, authorization: str) -> Caller | None:
        """Return whose bearer token an `Authorization` header has; None if it has no known one.

        A header's bytes that are not UTF-8 are surrogates, as aiohttp decodes them.
        """
        scheme, _, token = authorization.partition(" ")
        given = _digest_token(token.strip())
        known, caller = self._callers.get(given, (b"", None))
        return caller if scheme.lower() == "bearer" and hmac.compare_digest(known, given) else None


def _digest_token(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogateescape")).digest()
