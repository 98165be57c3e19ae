"""How large a session's row is, and how it is kept within the changelog's limit.

A row has texts of any length: its content, the user's name, an agent's error code, event ids. An
event that makes these longer is rejected if the row would exceed `RuleSet.row_bytes_max`. All other
parts of a row are bounded; together they take less than the changelog's topic allows above that
(`CHANGELOG_BYTES_MAX`). So a row that is full can still take rejections and deadlines.

A large content has a separate changelog record (`split_content`), which a heartbeat leaves alone.
Bounds and estimates are those of the whole row: both records are smaller, and a batch holds whole
rows in memory.
"""

from collections.abc import Sequence
from typing import Any, Final

from sessionary.schemas.codec import Decoder, encode_record
from sessionary.schemas.errors import DecodeError
from sessionary.schemas.records import SessionContent, SessionState, TombstoneChunk
from sessionary.schemas.types import Rejection, Snapshot
from sessionary.stream_processors.core.judge import Arrival, Objection
from sessionary.stream_processors.core.rows import Remains
from sessionary.stream_processors.core.session.effects import SessionRow, apply_fact
from sessionary.stream_processors.core.session.facts import (
    ContentRestored,
    ContentUpdated,
    Rejected,
    SnapshotTaken,
    TransactionMoved,
    Transitioned,
)
from sessionary.stream_processors.core.session.snapshots import snapshot_texts

# Facts that bring content; `Created` is checked too.
CONTENT_FACTS: Final = frozenset({ContentRestored, ContentUpdated, SnapshotTaken, TransactionMoved, Transitioned})
_SNAPSHOT_FACTS: Final = frozenset({SnapshotTaken, Transitioned})
EVENT_ID_MAX: Final = 128  # characters that a full row keeps of an event id; a UUID has 36
_REASON_CODE_MAX: Final = 64  # characters; only an agent's error code is longer
_BYTES_PER_CHARACTER_MAX: Final = 4
_BOUNDED_BYTES_MAX: Final = 64 << 10  # of all parts but the texts
_FIXED_BYTES: Final = 400  # about what a row takes besides its texts and ledgers, and its record besides the row
_LEDGER_BYTES: Final = 150  # about what a producer's ledger takes, with a gap or two and the hashes of its events
CONTENT_CHARACTERS_MAX: Final = 1_000  # stored in the row itself; a second record costs more
_NO_SNAPSHOT: Final = Snapshot("", None, 0, "", None, "", "UNKNOWN", "UNKNOWN")
_DECODER: Final = Decoder()


def object_to_size(row: SessionState | None, facts: Sequence[Any], arrival: Arrival) -> Objection | None:
    """Return why an event that brings content makes a row that is too large, or None.

    `facts`: all facts of the event.
    """
    if _fits_surely(row, arrival) and not _brings_more(facts, arrival):
        return None
    after = _after_facts(row, facts)
    size, limit = _row_bytes(after, arrival), arrival.rules.row_bytes_max
    if size <= limit or (row is not None and _text_bytes(after) <= _text_bytes(row)):
        return None
    return Objection("state_too_large", f"the session's row would have {size} bytes, more than {limit}")


def kept_rejection(row: SessionState, facts: Sequence[Any], arrival: Arrival, why: Objection) -> Rejection:
    """Return a rejection as the row keeps it.

    An event id for which the row has no room is cut; the id of an unreadable event is ''.
    `facts`: the further facts of the event.
    """
    event_id = arrival.event.envelope.event_id if arrival.event is not None else ""
    whole = Rejection(arrival.record.offset, why.reason, event_id)
    if len(event_id) <= EVENT_ID_MAX or _fits_surely(row, arrival):
        return whole
    after = _after_facts(row, (*facts, Rejected(*why, whole, audited=False)))
    if _row_bytes(after, arrival) <= arrival.rules.row_bytes_max:
        return whole
    return whole._replace(event_id=f"{event_id[:EVENT_ID_MAX]}…")


def estimate_row_bytes(row: SessionRow | TombstoneChunk) -> int:
    """Return about how many bytes a row's changelog record takes; no text of it is left out."""
    if isinstance(row, TombstoneChunk):
        return _FIXED_BYTES + len(row.key_hashes)
    size = _FIXED_BYTES + _LEDGER_BYTES * len(row.producers)
    texts = [row.reason_code]
    if isinstance(row, SessionState):
        texts = [*_texts(row), row.last_tool or "", row.last_result or ""]
    for text in texts:
        size += len(text) if text.isascii() else len(text.encode())
    return size


def split_content(row: SessionState, rules: int) -> tuple[SessionState, bytes | None]:
    """Return a row without its content, and the content's record; a small content stays (None)."""
    size = len(row.state_json)
    size += sum(map(len, snapshot_texts(row.snapshot))) + len(row.snapshot_ids)
    if size <= CONTENT_CHARACTERS_MAX:
        return row, None
    rest = row._replace(state_json="", snapshot=_NO_SNAPSHOT, snapshot_ids=b"", content_apart=True)
    return rest, encode_record(SessionContent(row.state_json, row.snapshot, row.snapshot_ids), rules)


def is_content_apart(row: SessionRow) -> bool:
    """Return whether a row, as the changelog has it, lacks its content."""
    return type(row) is SessionState and row.content_apart


def join_content(row: SessionState, content: bytes) -> SessionState:
    """Return the row that was split. Raises `DecodeError`."""
    found = _DECODER.decode_record(content)
    if not isinstance(found, SessionContent):
        raise DecodeError("unknown_schema", f"a {type(found).__name__} is no content")
    return row._replace(**found._asdict(), content_apart=False)


def _fits_surely(row: SessionState | None, arrival: Arrival) -> bool:
    """Return whether the row after an event cannot be too large: far cheaper than encoding it."""
    # A new row has the content of its event twice.
    room = arrival.rules.row_bytes_max - _BOUNDED_BYTES_MAX - 2 * len(arrival.record.value or b"")
    if row is None:
        return room >= 0
    texts = _texts(row)
    if sum(map(len, texts)) * _BYTES_PER_CHARACTER_MAX <= room:
        return True  # as almost every row
    return sum(len(text) if text.isascii() else len(text) * _BYTES_PER_CHARACTER_MAX for text in texts) <= room


def _brings_more(facts: Sequence[Any], arrival: Arrival) -> bool:
    """Return whether the row gets content, or a snapshot, of another size than the event carries.

    It may be older content, a snapshot of the row's state, or one that was a delta or compressed.
    """
    assert arrival.event is not None
    for fact in facts:
        if type(fact) is ContentRestored:
            return True
        if type(fact) in _SNAPSHOT_FACTS and fact.snapshot is not None:
            carried = getattr(arrival.event.payload, "snapshot", None)  # of most payloads it is missing
            if fact.snapshot is not carried:
                return True
    return False


def _after_facts(row: SessionState | None, facts: Sequence[Any]) -> SessionState:
    after: SessionRow | Remains | None = row
    for fact in facts:
        after = apply_fact(after, fact)
    assert isinstance(after, SessionState)
    return after


def _row_bytes(row: SessionState, arrival: Arrival) -> int:
    return len(arrival.record.key or b"") + len(encode_record(row, arrival.rules.version))


def _text_bytes(row: SessionState) -> int:
    return sum(len(text.encode()) for text in _texts(row))


def _texts(row: SessionState) -> list[str]:
    """Return the texts of a row whose length nothing else bounds."""
    texts = [
        row.state_json,
        row.user_id or "",
        row.reason_code if len(row.reason_code) > _REASON_CODE_MAX else "",
        row.parent_session_id or "",
        row.restored_from_snapshot_id or "",
        row.external_id or "",
        *snapshot_texts(row.snapshot),
    ]
    if row.question is not None:
        texts += (row.question.question_id, row.question.text)
    for answer in row.answers:
        texts += (answer.question_id, answer.by, answer.text or "")
    if row.hold is not None:
        texts.append(row.hold.by)
    if row.quota is not None:
        texts.append(row.quota.event_id)
    if row.rejections:
        texts.extend(rejection.event_id for rejection in row.rejections)
    if row.open_runs:
        texts.extend(run.run_id for run in row.open_runs)
    if row.transactions:
        texts.extend(text for each in row.transactions for text in (each.transaction_id, each.agent_id))
    if row.agents:
        texts.extend(value for agent in row.agents for value in agent)
    return texts
