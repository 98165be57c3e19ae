"""Ids, hashes, record keys and the partitioner: pure functions, the same in every role.

The partitioner is the Java client's murmur2 (`org.apache.kafka.common.utils.Utils.murmur2`), which
librdkafka calls `murmur2_random`.
"""

import hashlib
import json
import re
import secrets
import struct
import uuid
from functools import lru_cache
from typing import Final, NamedTuple

from sessionary.schemas.errors import Invalid
from sessionary.schemas.limits import CONVERSATION_TURNS_MAX
from sessionary.schemas.types import Snapshot

NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "urn:sessionary")
_OF_NAMESPACE: Final = hashlib.sha1(NAMESPACE.bytes, usedforsecurity=False)
NAME_LENGTH_MAX = 128
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_TASK_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_SNAPSHOT_ID = re.compile("snap_[0-9a-f]{12}")
SNAPSHOT_NUMBERS: Final = 1 << 48
_CHILD_HASH_BYTES = 16
_CHILD_SUFFIX_BYTES = 2 + 2 * _CHILD_HASH_BYTES
_LETTERS: Final = b"abcdefghijklmnopqrstuvwxyz"
_COLON: Final = 0x3A
_HEX_DIGITS: Final = b"0123456789abcdef"
EXTERNAL_ID_MAX = 256  # characters
# The fields of a snapshot from its conversation on that its hash covers.
_CONVERSATION: Final = Snapshot._fields.index("conversation_id")
_CONTENT_BYTES: Final = Snapshot._fields.index("content_bytes")
_HEX = re.compile(r"[0-9a-f]{32}")
_HYPHENED = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_IN_BRACES = rf"\{{({_HYPHENED}|[0-9a-f]{{32}})\}}"
_UUID_FORMS = re.compile(rf"(?:urn:uuid:)?({_HYPHENED})|urn:uuid:([0-9a-f]{{32}})|{_IN_BRACES}", re.IGNORECASE)
_NOT_IN_TEXTS: Final = frozenset({"Cc", "Cs", "Zl", "Zp"})
_SESSION_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[1-8][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


class SessionKey(NamedTuple):
    """Identity of a session. The session id, a lower-case UUID, is unique per tenant."""

    tenant_id: str
    session_id: str

    def encoded(self) -> bytes:
        """Return the record key, `tenant_id:session_id` in UTF-8."""
        return f"{self.tenant_id}:{self.session_id}".encode()


def run_key(tenant_id: str, session_id: str, run_id: str) -> bytes:
    """Return the key of a run's row, `tenant_id:session_id:run_id:` in UTF-8.

    No key of a session or of a content equals it: these do not end in a colon.
    """
    return f"{tenant_id}:{session_id}:{run_id}:".encode()


def step_key(run: bytes, name: str) -> bytes:
    """Return the key of a step's row; `run` is the key of its run."""
    return child_key(run, b"s", name)


def call_key(parent: bytes, idem_key: str) -> bytes:
    """Return the key of a tool call's row; `parent` is the key of its run, or of its session."""
    return child_key(parent, b"c", idem_key)


def artifact_key(parent: bytes, artifact_id: str) -> bytes:
    """Return the key of an artifact's row; `parent` is the key of its run, or of its session."""
    return child_key(parent, b"a", artifact_id)


def checkpoint_key(parent: bytes, operation: str) -> bytes:
    """Return the key of the row of an operation's checkpoints; `parent` is as in `call_key`."""
    return child_key(parent, b"k", operation)


def snapshots_key(session: bytes) -> bytes:
    """Return the key of the row of a session's last snapshots; `session` is the session's key."""
    return child_key(session, b"h", "")


def agent_key(session: bytes, agent_id: str) -> bytes:
    """Return the key of the row of a session's agent; `session` is the session's key."""
    return child_key(session, b"g", agent_id)


def message_key(session: bytes, turn: int) -> bytes:
    """Return the key of the row of a conversation's turn; `session` is the session's key.

    The turns of a session take `CONVERSATION_TURNS_MAX` rows, one after the other.
    """
    return session + _turn_suffix(turn % CONVERSATION_TURNS_MAX)


def child_key(parent: bytes, kind: bytes, name: str) -> bytes:
    """Return the key of a child's row; `kind` is the letter of its family."""
    return parent + _child_suffix(kind, name)


def _child_suffix(kind: bytes, name: str) -> bytes:
    digest = hashlib.blake2b(name.encode(), digest_size=_CHILD_HASH_BYTES).hexdigest()
    return b"\0%b%b" % (kind, digest.encode())


@lru_cache(maxsize=CONVERSATION_TURNS_MAX)
def _turn_suffix(place: int) -> bytes:
    return _child_suffix(b"m", str(place))


def split_child_key(key: bytes) -> tuple[bytes, bytes] | None:
    """Return the key of a child's parent, and the rest; None for a key of another row."""
    parent, rest = key[:-_CHILD_SUFFIX_BYTES], key[-_CHILD_SUFFIX_BYTES:]
    if len(rest) != _CHILD_SUFFIX_BYTES or rest[0] or rest[1] not in _LETTERS:
        return None
    return None if rest[2:].strip(_HEX_DIGITS) else (parent, rest)


def split_run_key(key: bytes) -> tuple[str, str, str]:
    """Return the tenant, the session's id and the run's id of a run's key."""
    tenant_id, session_id, run_id = key[:-1].decode().split(":", 2)  # a run's id may have colons itself
    return tenant_id, session_id, run_id


def task_key(tenant_id: str, task_id: str) -> bytes:
    """Return the key of a task's tombstone; it is the key of no row, as it is no UTF-8."""
    return b"\xfftask:" + f"{tenant_id}:{task_id}".encode()


def quota_key(tenant_id: str, quota: str) -> bytes:
    """Return the key of the row of a tenant's quota, and of the records about it."""
    return f"{tenant_id}/{quota}".encode()


def is_run_key(key: bytes) -> bool:
    """Return whether a row's key is that of a run."""
    # The byte itself: in the compiled core, that calls no method.
    return len(key) > 0 and key[-1] == _COLON


def valid_name(name: str) -> bool:
    """Return True if `name` may name a tenant, service or agent.

    It has 1 to 128 ASCII letters, digits, `.`, `_` and `-`, and begins with a letter or digit.
    """
    return len(name) <= NAME_LENGTH_MAX and _well_formed(name)


@lru_cache(maxsize=1 << 14)  # the same few names recur in every event
def _well_formed(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def checked_name(kind: str, name: str) -> str:
    """Return `name`. Raises `Invalid("invalid_value")` if it cannot name a `kind` (tenant, …)."""
    if not isinstance(name, str):
        raise Invalid(
            "invalid_value",
            f"{kind} is {name!r}, not a text: pass its name; None often comes from an environment variable that is "
            "not set",
        )
    if not valid_name(name):
        raise Invalid(
            "invalid_value",
            f"{kind} {name!r}: use 1 to {NAME_LENGTH_MAX} letters, digits, '.', '_' or '-', a letter or digit first",
        )
    return name


SessionId = str | uuid.UUID
"""An id as a caller gives it: a UUID, or any text."""


class GivenId(NamedTuple):
    """An id as a caller gave it: the session's UUID, and the text that it was made of, if any."""

    session_id: str
    external_id: str | None


def given_session_id(tenant_id: str, given: SessionId, what: str = "session id") -> GivenId:
    """Return the session that a tenant's id names: a UUID in any form, or any text.

    A UUID of RFC 9562 is the id itself, in lower case: a `uuid.UUID`, or a text with or without
    hyphens, in braces, or as a URN. Any other text has the UUIDv5 of `tenant_id`, a colon and the
    text, in Unicode's form NFC, in the namespace `NAMESPACE`
    (4f57ed18-cff9-5d12-8162-c7e95c2effaa). So equal texts of a tenant name one session, in every
    process and language; those of two tenants name two.

    Raises `Invalid("invalid_value")` for another type, for a text that is empty or blank, has more
    than 256 characters in NFC, control characters, line separators or lone surrogates. `what` names
    the id in the error.
    """
    if isinstance(given, str) and _SESSION_ID.fullmatch(given) is not None:
        return GivenId(given, None)
    if isinstance(given, uuid.UUID):
        text = str(given)
    elif isinstance(given, str):
        match = _UUID_FORMS.fullmatch(given)
        text = given if match is None else match[match.lastindex or 0].lower()
        plain = text.lower()
        if _HEX.fullmatch(plain) is not None:
            hyphened = f"{plain[:8]}-{plain[8:12]}-{plain[12:16]}-{plain[16:20]}-{plain[20:]}"
            text = hyphened if _SESSION_ID.fullmatch(hyphened) is not None else text  # else a hash, for example
    else:
        raise Invalid(
            "invalid_value", f"{what} is {given!r}, neither a text nor a uuid.UUID: pass a UUID, or a text of your own"
        )
    if _SESSION_ID.fullmatch(text) is not None:
        return GivenId(text, None)
    text = _checked_text(text, what)
    return GivenId(derived_id(tenant_id, text), text)


def _checked_text(text: str, what: str) -> str:
    """Return a text of an id in NFC. Raises `Invalid`."""
    unicode_fault = ""
    if not text.isascii():
        import unicodedata  # most ids do without it

        text = unicodedata.normalize("NFC", text)
        unicode_fault = next((found for found in text if unicodedata.category(found) in _NOT_IN_TEXTS), "")
    control = unicode_fault or next((found for found in text if found < " " or found == "\x7f"), "")
    if not text.strip():
        raise Invalid("invalid_value", f"{what} {text!r} is empty: pass a UUID, or a text of your own")
    if len(text) > EXTERNAL_ID_MAX:
        raise Invalid(
            "invalid_value",
            f"{what} {text[:32]!r}… has {len(text)} characters, more than {EXTERNAL_ID_MAX}: pass a shorter text, or "
            "its hash",
        )
    if control:
        raise Invalid(
            "invalid_value", f"{what} {text!r} has the control character {control!r}: pass a text without such"
        )
    return text


def successor_id(tenant_id: str, session_id: str) -> str:
    """Return the id of the session that continues an ended one: the same in every process.

    A session ends once, so it has one successor. The UUIDv5 of `tenant_id`, a slash and the ended
    session's id; no text of `given_session_id` has it.
    """
    return derived_id(f"{tenant_id}/{session_id}")


def parse_key(key: bytes | None) -> SessionKey:
    """Read a record key. Raises `Invalid("bad_key")` unless it is `tenant_id:session_id`."""
    try:
        tenant_id, _, session_id = (key or b"").decode().partition(":")
    except UnicodeDecodeError:
        raise Invalid("bad_key", f"key {key!r} is not UTF-8") from None
    if _NAME.fullmatch(tenant_id) is None or _SESSION_ID.fullmatch(session_id) is None:
        raise Invalid("bad_key", f"key {key!r} is not tenant_id:session_id")
    return SessionKey(tenant_id, session_id)


def new_session_id(now_ms: int | None = None) -> str:
    """Make a session id: a random UUIDv4, or a time-ordered UUIDv7 if `now_ms` is given.

    `now_ms` is in ms since the epoch.
    """
    if now_ms is None:
        return str(uuid.uuid4())
    value = now_ms << 80 | 0x7 << 76 | secrets.randbits(12) << 64 | 0b10 << 62 | secrets.randbits(62)
    return str(uuid.UUID(int=value))


def creation_ms(session_id: str) -> int | None:
    """Return when a session id was made, in ms since the epoch; None unless it is a UUIDv7.

    It is the clock of who made the id. `session_id` must be a UUID.
    """
    return int(session_id[:8] + session_id[9:13], 16) if session_id[14] == "7" else None


def new_task_id(session: SessionKey, name: str | None = None) -> str:
    """Make the id of a task of a session: a UUIDv8 that begins with the hash of the session's key.

    So the partition of its session follows from a task's id. Equal names give equal ids; None: the
    id is random.
    """
    rest = secrets.randbits(96) if name is None else uuid.UUID(derived_id(*session, name)).int & (1 << 96) - 1
    value = murmur2(session.encoded()) << 96 | rest
    value = value & ~(0xF << 76 | 0b11 << 62) | 0x8 << 76 | 0b10 << 62
    return str(uuid.UUID(int=value))


def is_task_id(task_id: str, session: SessionKey) -> bool:
    """Return whether an id is that of a task of a session, as `new_task_id` makes it."""
    return _TASK_ID.fullmatch(task_id) is not None and int(task_id[:8], 16) == murmur2(session.encoded())


def partition_of_task(task_id: str, partitions: int) -> int | None:
    """Return the partition of a task's session; None for an id that is not of a task."""
    if _TASK_ID.fullmatch(task_id) is None:
        return None
    return (int(task_id[:8], 16) & 0x7FFFFFFF) % partitions


def derived_id(*parts: str | int) -> str:
    """Make the UUIDv5 of `parts`, joined with colons: equal parts give equal ids everywhere."""
    # The same as `uuid.uuid5`, which spends most of its time on making a `UUID` object. A copy of a
    # hash that has begun costs half of a new one.
    sha1 = _OF_NAMESPACE.copy()
    sha1.update(":".join([str(part) for part in parts]).encode())
    digest = sha1.hexdigest()
    variant = "89ab"[int(digest[16], 16) & 3]
    return f"{digest[:8]}-{digest[8:12]}-5{digest[13:16]}-{variant}{digest[17:20]}-{digest[20:32]}"


def content_hash(content: str) -> str:
    """Return the SHA-256 of a text in UTF-8, as hex."""
    return hashlib.sha256(content.encode()).hexdigest()


def snapshot_hash(snapshot: Snapshot) -> str:
    """Return the hash of a whole snapshot's content, as hex.

    It is the SHA-256 of `state_json`, followed, if the snapshot says more than its state, by a line
    feed and the JSON array of context, conversation_id, turn, messages, total_tokens, tool,
    resources and metadata: without spaces, keys sorted, records as arrays of their values.
    """
    more: tuple[object, ...] = (snapshot.context, *snapshot[_CONVERSATION:_CONTENT_BYTES])
    if not any(value is not None and value != () and value != {} and value != [] for value in more):
        return content_hash(snapshot.state_json)
    rest = json.dumps((*more[:-1], dict(snapshot.metadata)), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return content_hash(f"{snapshot.state_json}\n{rest}")


def snapshot_id_of(number: int) -> str:
    """Return the snapshot id of a number: `snap_` and 12 hex digits, the number's last 48 bits."""
    return f"snap_{number % SNAPSHOT_NUMBERS:012x}"


def snapshot_number(snapshot_id: str) -> int | None:
    """Return the number of a snapshot's id, below `SNAPSHOT_NUMBERS`; None if it is no such id."""
    return int(snapshot_id[5:], 16) if _SNAPSHOT_ID.fullmatch(snapshot_id) else None


def event_snapshot_id(event_id: str) -> str:
    """Return the id of the snapshot that an event makes without naming it."""
    return f"snap_{content_hash(event_id)[:12]}"


def murmur2(data: bytes) -> int:
    """Return Kafka's 32-bit murmur2 of `data`, as an unsigned number."""
    h = 0x9747B28C ^ len(data)
    whole = len(data) & ~3
    words: tuple[int, ...] = struct.unpack(f"<{whole >> 2}I", data[:whole])
    for word in words:
        k = _mix(word)
        h = _mix(h) ^ _mix(k ^ k >> 24)
    if tail := data[whole:]:
        h = _mix(h ^ int.from_bytes(tail, "little"))
    h = _mix(h ^ h >> 13)
    return h ^ h >> 15


def _mix(number: int) -> int:
    """Return 32 bits times 0x5BD1E995, modulo 2**32.

    In parts of 16 bits: a native build multiplies without an object only below 30 bits.
    """
    low = number & 0xFFFF
    return low * 0xE995 + (((number >> 16) * 0xE995 + low * 0x5BD1 & 0xFFFF) << 16) & 0xFFFFFFFF


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition, from 0, that Kafka's default partitioner gives `key`."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
