"""Who signed a record of the events topic, by the auditor's own reading of the header."""

import hashlib
import hmac
from collections.abc import Iterable

SECRETS = {"test": "the secret of all test pipelines, of no other"}
"""The signing keys of the stacks that tests run, by id."""


def is_signed(key: bytes | None, value: bytes, headers: Iterable[tuple[str, bytes]]) -> bool:
    """Return True if exactly one signature is there, of this record, by one of the keys."""
    found = [content for name, content in headers if name == "signature"]
    place = b"\xff" * 4 if key is None else len(key).to_bytes(4, "big") + key
    text = b"sessionary signature 1\0" + place + value
    right = [
        f"{name}:{hmac.new(secret.encode(), text, hashlib.sha256).hexdigest()}".encode()
        for name, secret in SECRETS.items()
    ]
    return len(found) == 1 and found[0] in right
