"""How large a run's row is, and how its content becomes a changelog record of its own.

The bound is the one of a session's row (`RuleSet.row_bytes_max`): key and whole row.
"""

from typing import Final

from sessionary.schemas.codec import Decoder, encode_record
from sessionary.schemas.errors import DecodeError
from sessionary.schemas.records import FinishedRun, RunContent, RunState
from sessionary.stream_processors.core.machine import Arrival, Objection
from sessionary.stream_processors.core.run.transitions import RunRow

CONTENT_CHARACTERS_MAX: Final = 1_000  # that a row has beside the rest; a second record costs more
_FIXED_BYTES = 300  # about what a row takes beside its texts, and its record beside the row
_BYTES_PER_CHARACTER_MAX = 4
_DECODER = Decoder()


def object_to_run_size(key: bytes, after: RunRow, arrival: Arrival) -> Objection | None:
    """Return why an event makes a run's row too large, or None. `after` is the row after it."""
    limit = arrival.rules.row_bytes_max
    characters = len(after.run_id) + sum(map(len, _texts(after)))
    if len(key) + _FIXED_BYTES + characters * _BYTES_PER_CHARACTER_MAX <= limit:
        return None  # as almost every row
    size = len(key) + len(encode_record(after, arrival.rules.version))
    if size <= limit:
        return None
    return Objection("state_too_large", f"the run's row would have {size} bytes, more than {limit}")


def estimate_run_bytes(row: RunRow) -> int:
    """Return about how many bytes a row's changelog record takes; no text of it is left out."""
    return _FIXED_BYTES + len(row.run_id.encode()) + sum(len(text.encode()) for text in _texts(row))


def split_run_content(row: RunRow, rules: int) -> tuple[RunRow, bytes | None]:
    """Return a row without its content, and the content's record; a small content stays (None)."""
    content = RunContent(row.input_json, row.plan_json, row.result_json, row.artifact_id)
    if sum(len(text) for text in content if text is not None) <= CONTENT_CHARACTERS_MAX:
        return row, None
    rest = row._replace(input_json=None, plan_json=None, result_json=None, artifact_id=None, content_apart=True)
    return rest, encode_record(content, rules)


def is_run_content_apart(row: RunRow) -> bool:
    """Return whether a row, as the changelog has it, lacks its content."""
    return row.content_apart


def join_run_content(row: RunRow, content: bytes) -> RunRow:
    """Return the row that was split. Raises `DecodeError`."""
    found = _DECODER.decode_record(content)
    if not isinstance(found, RunContent):
        raise DecodeError("unknown_schema", f"a {type(found).__name__} is no content of a run")
    return row._replace(**found._asdict(), content_apart=False)


def _texts(row: RunState | FinishedRun) -> list[str]:
    """Return the texts of a row that may be long."""
    texts = [row.user_id, row.task_type, row.input_json, row.plan_json, row.result_json, row.artifact_id]
    if row.error is not None:
        texts += row.error[1:]
    return [text for text in (*texts, row.reason_code) if text is not None]


__all__ = [
    "CONTENT_CHARACTERS_MAX",
    "estimate_run_bytes",
    "is_run_content_apart",
    "join_run_content",
    "object_to_run_size",
    "split_run_content",
]
