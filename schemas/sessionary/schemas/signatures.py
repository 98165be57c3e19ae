"""Signatures of the records that only server roles may make: operators' events and the like.

Any client may write to the events topic. A record that claims authority counts only with one header

    signature = <key id>:<HMAC-SHA256 in hex, of a tag, the record's key and its value>

An event's value names its tenant, session, producer, number and id, so that the signature fits no
other session, and a copy is a duplicate. The keys are a JSON object of secrets by key id: the first
signs, all verify. They also hide what a caller gets only to give it back (`seal`). Pure. No error
repeats a secret.
"""

import hashlib
import hmac
import json
import re
from collections.abc import Mapping, Sequence
from typing import Final, final

SIGNATURE: Final = "signature"
SECRET_CHARACTERS_MIN: Final = 32
_TAG: Final = b"sessionary signature 1\0"
_SEAL_TAG: Final = b"sessionary seal 1\0"
_STREAM_TAG: Final = b"sessionary seal stream 1\0"
_SEAL_BYTES: Final = 16
_NO_KEY: Final = b"\xff\xff\xff\xff"  # in place of the length of a record's key
_KEY_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_FORM: Final = 'must be a JSON object of secrets by key id, such as {"k1": "…"}'


@final
class SigningKeys:
    """The keys of a pipeline's server roles. False if there is none.

    All who have the object see a change; any thread may make it.
    """

    __slots__ = ("_secrets",)

    def __init__(self, secrets: Mapping[str, str]) -> None:
        """`secrets`: by key id, as `parse_signing_keys` returns them."""
        self._secrets: dict[str, bytes] = {}
        self.replace(secrets)

    def __bool__(self) -> bool:
        return bool(self._secrets)

    def replace(self, secrets: Mapping[str, str]) -> None:
        """Change the keys for these, as in `__init__`."""
        self._secrets = {key_id: secret.encode() for key_id, secret in secrets.items()}

    def sign(self, key: bytes | None, value: bytes) -> tuple[str, bytes]:
        """Return the header for a record. Raises `ValueError` if there is no key."""
        for key_id, secret in self._secrets.items():
            return SIGNATURE, f"{key_id}:{_digest(secret, key, value)}".encode()
        raise ValueError("there is no signing key: set SESSIONARY_SIGNING_KEYS_FILE")

    def find_fault(self, key: bytes | None, value: bytes, headers: Sequence[tuple[str, bytes]]) -> str | None:
        """Return why no server role has signed a record, for people; None if one has."""
        found = [content for name, content in headers if name == SIGNATURE]
        if len(found) != 1:
            return f"it has {len(found)} signatures" if found else "it has no signature"
        key_id, colon, signature = found[0].decode("ascii", "replace").partition(":")
        if not colon or _KEY_ID.fullmatch(key_id) is None:
            return "its signature names no key"
        secret = self._secrets.get(key_id)
        if secret is None:
            return f"it is signed by key {key_id}, which is not known here"
        if not hmac.compare_digest(_digest(secret, key, value).encode(), signature.encode()):
            return f"its signature by key {key_id} is of another record, or by another secret"
        return None

    def seal(self, text: bytes) -> bytes:
        """Return a text that tells nothing but its length without the first key.

        The same text gives the same one: its digest is the start of the key stream, and its proof.
        """
        secret = next(iter(self._secrets.values()), b"")
        seal = hmac.digest(secret, _SEAL_TAG + text, "sha256")[:_SEAL_BYTES]
        return seal + _mask(secret, seal, text)

    def unseal(self, sealed: bytes) -> bytes:
        """Return the text that one of the keys has sealed. Raises `ValueError`."""
        seal, masked = sealed[:_SEAL_BYTES], sealed[_SEAL_BYTES:]
        for secret in self._secrets.values() or (b"",):
            text = _mask(secret, seal, masked)
            if hmac.compare_digest(hmac.digest(secret, _SEAL_TAG + text, "sha256")[:_SEAL_BYTES], seal):
                return text
        raise ValueError("no key that is known here has sealed it")

    def fingerprint(self) -> str:
        """Return the ids, sorted, each with the beginning of its secret's SHA-256: no secret."""
        return ", ".join(
            f"{key_id} {hashlib.sha256(secret).hexdigest()[:8]}" for key_id, secret in sorted(self._secrets.items())
        )


NO_KEYS: Final = SigningKeys({})
"""With these, no record is signed."""


def _digest(secret: bytes, key: bytes | None, value: bytes) -> str:
    named = _NO_KEY if key is None else len(key).to_bytes(4, "big") + key
    return hmac.digest(secret, _TAG + named + value, "sha256").hex()


def _mask(secret: bytes, seal: bytes, text: bytes) -> bytes:
    """Return a text, exclusive or a stream that the key and the seal give; twice is once undone."""
    blocks = range(-(-len(text) // hashlib.sha256().digest_size))
    stream = b"".join(hmac.digest(secret, _STREAM_TAG + seal + n.to_bytes(4, "big"), "sha256") for n in blocks)
    return bytes(a ^ b for a, b in zip(text, stream, strict=False))


def parse_signing_keys(source: object) -> dict[str, str]:
    """Return the secrets by key id, in order, from JSON text or from its decoded value.

    Raises `ValueError` that names wrong keys by their place, from 1.
    """
    pairs = list(source.items()) if isinstance(source, Mapping) else _read_pairs(source)
    keys: dict[str, str] = {}
    for place, (key_id, secret) in enumerate(pairs, 1):
        if not isinstance(key_id, str) or _KEY_ID.fullmatch(key_id) is None:
            raise ValueError(f"key {place}: an id has 1 to 64 letters, digits, '.', '_' or '-'")
        if key_id in keys:
            raise ValueError(f"key {place}: its id is that of an earlier key")
        if not isinstance(secret, str) or len(secret) < SECRET_CHARACTERS_MIN or not secret.isprintable():
            raise ValueError(f"key {place}: a secret is a text of at least {SECRET_CHARACTERS_MIN} characters")
        keys[key_id] = secret
    if not keys:
        raise ValueError(_FORM)
    return keys


def _read_pairs(source: object) -> list[tuple[str, object]]:
    try:
        # As pairs, so that an id that is there twice shows.
        found = json.loads(source, object_pairs_hook=tuple) if isinstance(source, str | bytes) else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, tuple):
        raise ValueError(_FORM)
    return list(found)
