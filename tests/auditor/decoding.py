"""Decodes log records for the auditor: with fastavro itself, into dictionaries."""

import hashlib
import io
import re
import struct
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from fastavro import schemaless_reader

from tests.auditor.avro_schemas import schemas_by_fingerprint
from tests.auditor.rules import OUTPUT_BYTES, REJECTED_BYTES, RULES
from tests.auditor.signatures import is_signed

Row = dict[str, Any]
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_TASK = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[1-8][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_IDS = uuid.uuid5(uuid.NAMESPACE_URL, "urn:sessionary")


class LogEntry(NamedTuple):
    """A record of the events topic."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]] = ()

    @property
    def is_replayed(self) -> bool:
        """Whether an operator sent the record again."""
        return any(name == "replayed_from" for name, _ in self.headers)

    @property
    def is_signed(self) -> bool:
        """Whether a server role has signed the record."""
        return is_signed(self.key, self.value or b"", self.headers)


class Rejection(Exception):
    """The record is rejected; the text is the reason."""


def check_external_id(envelope: Row, fields: Row) -> None:
    """Raise `Rejection` for the text of another session's id; a successor keeps its parent's."""
    tenant, session, text = envelope["tenant_id"], envelope["session_id"], fields.get("external_id")
    names = {f"{tenant}:{text}", f"{tenant}/{fields['parent_session_id']}"}
    if text is not None and session not in {str(uuid.uuid5(_IDS, name)) for name in names}:
        raise Rejection("invalid_value")


def cleanup_id_of(row: Row) -> str:
    return str(uuid.uuid5(_IDS, f"{row['tenant']}:{row['session']}:{row['audit_seq']}"))


def key_parts(key: bytes | None) -> tuple[str, str]:
    """Return tenant and session of a key, or two empty strings if it is none."""
    tenant, _, session = (key or b"").decode("utf-8", "replace").partition(":")
    return (tenant, session) if NAME.fullmatch(tenant) and _UUID.fullmatch(session) else ("", "")


def murmur2(key: bytes) -> int:
    """Return the hash of Kafka's partitioner."""
    bits, factor = 0xFFFFFFFF, 0x5BD1E995
    state = 0x9747B28C ^ len(key)
    padded = key[len(key) & ~3 :]
    for at in range(0, len(key) - 3, 4):
        word = struct.unpack_from("<I", key, at)[0] * factor & bits
        state = state * factor & bits ^ (word ^ word >> 24) * factor & bits
    if padded:
        state = (state ^ int.from_bytes(padded, "little")) * factor & bits
    state = (state ^ state >> 13) * factor & bits
    return state ^ state >> 15


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition that Kafka's partitioner chooses: murmur2 without its sign bit."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


ACTIVATION = "rules_activation"  # the type of the record with which rules begin
VERDICT = "quota_verdict"


# Operators' decisions that leave records unfolded.
SKIPS = ("records_skipped", "log_gap_accepted", "log_truncation_accepted")


class Decision(NamedTuple):
    """An operator's decision, from the audit trail.

    Rules that may begin from an offset on, with what an output and a rejected record may take; a
    clock that is set there: the stamps of records below `until_offset` do not move it; or offsets
    from `first` to `last` that are not folded. These begin at the decision's own offset, unless a
    cut log gave them to other records.
    """

    partition: int
    offset: int
    event_type: str
    version: int = 0
    clock_ms: int = 0
    until_offset: int = 0
    first: int = 0
    last: int = -1
    output_bytes: int = OUTPUT_BYTES
    rejected_bytes: int = REJECTED_BYTES
    quotas: bool = False
    session_quotas: bool = False
    resume_ms: int = 86_400_000
    token_quotas: bool = False


def decisions_of(audit_lines: Iterable[Mapping[str, Any]]) -> list[Decision]:
    """Return the decisions that an audit trail has, in log order."""
    found: list[tuple[tuple[int, int, int], Decision]] = []
    for line in audit_lines:
        place, kind = (line["source_partition"], line["source_offset"]), line["event_type"]
        if kind in SKIPS:
            clock_ms = microseconds(line["appended_at"]) // 1_000
            decision = Decision(*place, kind, 0, clock_ms, 0, line["gap_first"], line["gap_last"])
        elif line["kind"] != "decision":
            continue
        elif kind == "rules_announced":
            match = re.match(r"rules (\d+) .*; .* bytes, outputs (\d+), rejected records (\d+); ", line["reason"])
            assert match is not None, line["reason"]
            version, output_bytes, rejected_bytes = map(int, match.groups())
            decision = Decision(*place, kind, version, output_bytes=output_bytes, rejected_bytes=rejected_bytes)
            asking = [who for who in ("runs", "sessions") if f"; {who} ask for quotas" in line["reason"]]
            decision = decision._replace(quotas="runs" in asking, session_quotas="sessions" in asking)
            resumed = re.search(r"resumed for (\d+) ms", line["reason"])
            assert resumed is not None, line["reason"]
            counted = "; tokens count for quotas" in line["reason"]
            decision = decision._replace(resume_ms=int(resumed[1]), token_quotas=counted)
        else:
            match = re.search(r": clock set from \d+ to (\d+) ms ", line["reason"])
            assert match is not None, line["reason"]
            last = line["gap_last"]
            decision = Decision(*place, kind, 0, int(match[1]), 0 if last is None else last + 1)
        found.append(((*place, line["source_n"]), decision))
    return [decision for _, decision in sorted(found)]


def microseconds(time: Any) -> Any:
    """Return µs since the epoch of a `datetime` (without a zone, in UTC); else the value itself."""
    if not isinstance(time, datetime):
        return time
    aware = time if time.tzinfo else time.replace(tzinfo=UTC)
    return (aware - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def decode_record(value: bytes | None, rules: int = RULES) -> tuple[str, Row]:
    """Decode Avro's single-object encoding into full schema name and fields; raises `Rejection`.

    A schema that came with later rules is unknown.
    """
    if not value or value[:2] != b"\xc3\x01" or len(value) < 10:
        raise Rejection("unknown_schema" if value and value[0] == 0 and len(value) >= 5 else "undecodable")
    writer = schemas_by_fingerprint().get(value[2:10])
    if writer is None or writer.rules > rules:
        raise Rejection("unknown_schema")
    stream = io.BytesIO(value[10:])
    try:
        fields: Any = schemaless_reader(stream, writer.parsed, None)
    except Exception:  # noqa: BLE001 - broken bytes raise many kinds of errors
        raise Rejection("undecodable") from None
    if stream.read():
        raise Rejection("undecodable")
    return writer.full_name, fields


def read_event(value: bytes | None, rules: int = RULES) -> tuple[str, Row]:
    """Decode a record of the events topic into event type and fields; raises `Rejection`."""
    full_name, fields = decode_record(value, rules)
    _, family, name = full_name.split(".")
    if family == "records":
        if name not in ("Tick", "RulesActivation", "QuotaVerdict"):
            raise Rejection("unknown_event_type")
        return {"Tick": "tick", "RulesActivation": ACTIVATION}.get(name, VERDICT), fields
    event_type = re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
    if fields["envelope"]["event_type"] != event_type:
        raise Rejection("unknown_event_type")
    return event_type, fields


def begun_rules(entry: LogEntry) -> int:
    """Return the version of the rules that begin with a record; 0 for any other record."""
    if entry.key is not None:
        return 0
    try:
        full_name, fields = decode_record(entry.value)
    except Rejection:
        return 0
    return int(fields["version"]) if full_name.endswith(".RulesActivation") else 0


def packed_hash(key: bytes) -> bytes:
    """Return what a chunk of tombstones has of a key."""
    return hashlib.blake2b(key, digest_size=16).digest()


def run_grave_hashes(key: bytes) -> list[bytes]:
    """Return what chunks have of a run that vanished: two hashes if its id is that of a task."""
    tenant, session, run = key[:-1].decode().split(":", 2)
    hashes = [packed_hash(key)]
    if _TASK.fullmatch(run) and int(run[:8], 16) == murmur2(f"{tenant}:{session}".encode()):
        hashes.append(packed_hash(b"\xfftask:" + f"{tenant}:{run}".encode()))
    return hashes


def hashes_in(chunk: bytes) -> list[bytes]:
    return [chunk[start : start + 16] for start in range(0, len(chunk), 16)]


def producer_hash(producer: str) -> int:
    (number,) = struct.unpack(">q", hashlib.sha256(producer.encode()).digest()[:8])
    return int(number)


def run_key_of(key: bytes, run_id: str) -> bytes:
    """Return the key of a run's row: its session's key and its id."""
    return key + b":" + run_id.encode() + b":"


def child_key_of(parent: bytes, letter: str, name: str) -> bytes:
    """Return the key of a row of a step (`s`), call (`c`), artifact (`a`) or turn (`m`)."""
    digest = hashlib.blake2b(name.encode(), digest_size=16).hexdigest()
    return parent + f"\0{letter}{digest}".encode()


def new_row(envelope: Row, snapshot: Row, limits: dict[str, int], now: int) -> Row:
    """Return the row of a new session."""
    return {
        "tenant": envelope["tenant_id"],
        "session": envelope["session_id"],
        "owner": envelope["service_id"],
        "agent": envelope["agent_id"],
        "holder": "",
        "owner_heard": 0,
        "state": "UNKNOWN",
        "phase": None,
        "epoch": 1,
        "version": 1,
        "audit_seq": 0,
        "limits": limits,
        "created_at": now,
        "last_event_at": now,
        "last_work_at": now,
        "max_due_at": None,
        "released_at": None,
        "attempts": 0,
        "error_class": None,
        "state_json": snapshot["state_json"],
        "state_schema": snapshot["schema_version"],
        "head": snapshot["snapshot_id"],
        "migration": None,  # the last one
        "whole": snapshot,  # the head with its whole content
        "snapshot_ids": [],  # those before the head
        "question": None,  # id, how long it may be answered in ms, text
        "hold": None,  # by whom an operator's is, and for how long in ms
        "answers": [],  # of each: id of its question, whether it approves, reason code, by whom, text
        "answered": False,  # an answer has led to its state
        "holder_epoch": 0,
        "exchanges": 0,
        "turn_by": 0,
        "producers": {},
        "forgotten": {},
        "cleanups": {},
        "asked": {},  # actions, service and epoch of each clean-up
        "rejections": [],
        "context_exceeded": False,
        "late_epoch": 0,
        "fenced": None,
        "claim": None,  # to its tenant's quota
        "turns": 0,
        "agents": {},
        "shared_results": 0,
        "transactions": [],  # open ones: id, when it began, agent
        "last_tool": None,
        "last_result": None,
        "open_runs": [],  # their keys, in the order in which they began
    }


class Line(NamedTuple):
    """An event whose envelope matches its key. Heartbeats have no number and are left out."""

    entry: LogEntry
    envelope: Row
    producer: tuple[str, str, str]  # tenant, session, producer
    seq: int


def numbered_events(log: list[LogEntry]) -> Iterator[Line]:
    """Yield the events that have a number."""
    for entry in log:
        try:
            kind, fields = read_event(entry.value)
        except Rejection:
            continue
        if kind in ("tick", ACTIVATION, VERDICT, "heartbeat"):
            continue
        envelope = fields["envelope"]
        if f"{envelope['tenant_id']}:{envelope['session_id']}".encode() == entry.key:
            producer = envelope["tenant_id"], envelope["session_id"], envelope["producer_id"]
            yield Line(entry, envelope, producer, envelope["producer_seq"])
