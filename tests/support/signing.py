"""The signing keys of test pipelines, and the signatures of records as server roles make them."""

from collections.abc import Sequence

from sessionary.schemas.codec import Decoder, Event
from sessionary.schemas.errors import DecodeError
from sessionary.schemas.records import QuotaVerdict, RulesActivation
from sessionary.schemas.rules import newest_known
from sessionary.schemas.signatures import SIGNATURE, SigningKeys
from tests.auditor.signatures import SECRETS

KEYS = SigningKeys(SECRETS)
_DECODER = Decoder(rules=newest_known().version)
Headers = Sequence[tuple[str, bytes]]


def claims_authority(value: bytes | None) -> bool:
    """Return True for an operator's event, a verdict of the quotas, and an activation of rules."""
    try:
        found = _DECODER.decode_event(value)
    except DecodeError:
        return False
    if isinstance(found, Event):
        return getattr(found.payload, "as_operator", False) is True
    return isinstance(found, QuotaVerdict | RulesActivation)


def with_signature(key: bytes | None, value: bytes | None, headers: Headers = (), keys: SigningKeys = KEYS) -> Headers:
    """Return the headers of a record, signed if it claims authority and has no signature yet."""
    if any(name == SIGNATURE for name, _ in headers) or value is None or not claims_authority(value):
        return headers
    return [*headers, keys.sign(key, value)]
