"""How large a row is that depends on a session, and how its content becomes a record of its own.

The bound is the one of a session's row (`RuleSet.row_bytes_max`): key and whole row.
"""

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, Final

from sessionary.schemas.codec import Decoder, encode_record, record_headers
from sessionary.schemas.errors import DecodeError
from sessionary.schemas.records import MessageContent, RunContent, StepContent, ToolCallContent
from sessionary.stream_processors.core.judge import Arrival, Objection
from sessionary.stream_processors.core.rows import RowParts

CONTENT_CHARACTERS_MAX: Final = 1_000  # that a row has beside the rest; a second record costs more
_FIXED_BYTES: Final = 200  # about what a row takes beside its texts, and its record beside the row
_BYTES_PER_CHARACTER_MAX: Final = 4
_DECODER: Final = Decoder()


def object_to_row_size(name: str, key: bytes, after: Any, arrival: Arrival) -> Objection | None:
    """Return why an event makes a row too large, or None.

    `after` is the row after it, a NamedTuple; `name` is what people call it.
    """
    limit = arrival.rules.row_bytes_max
    characters = sum(map(len, _texts(after)))
    if len(key) + _FIXED_BYTES + characters * _BYTES_PER_CHARACTER_MAX <= limit:
        return None  # as almost every row
    size = len(key) + len(encode_record(after, arrival.rules.version))
    if size <= limit:
        return None
    return Objection("state_too_large", f"the {name}'s row would have {size} bytes, more than {limit}")


def estimate_row_bytes(row: Any) -> int:
    """Return about how many bytes a row's changelog record takes; no text of it is left out."""
    size = _FIXED_BYTES
    for text in _texts(row):
        size += len(text) if text.isascii() else len(text.encode())
    return size


def content_parts(content_class: type[RunContent | StepContent | ToolCallContent | MessageContent]) -> RowParts:
    """Return how rows whose content has the fields of a class are split; a small one stays."""
    names = content_class._fields
    texts_of: Callable[[Any], tuple[Any, ...]] = attrgetter(*names) if len(names) > 1 else _only_text(names[0])

    def split(row: Any, rules: int) -> tuple[Any, bytes | None]:
        texts, size = texts_of(row), 0
        for text in texts:
            if text:
                size += len(text)
        if size <= CONTENT_CHARACTERS_MAX:
            return row, None
        rest = row._replace(**dict.fromkeys(names), content_apart=True)
        return rest, encode_record(content_class(*texts), rules)

    def is_split(row: Any) -> bool:
        apart: bool = row.content_apart
        return apart

    def join(row: Any, content: bytes) -> Any:
        found = _DECODER.decode_record(content)
        if not isinstance(found, content_class):
            raise DecodeError("unknown_schema", f"a {type(found).__name__} is no {content_class.__name__}")
        return row._replace(**found._asdict(), content_apart=False)

    return RowParts(split, is_split, join, record_headers(content_class))


def _only_text(name: str) -> Callable[[Any], tuple[Any, ...]]:
    def text_of(row: Any) -> tuple[Any, ...]:
        return (getattr(row, name),)

    return text_of


def _texts(row: Iterable[Any]) -> list[str]:
    """Return all texts of a row, those of values within it too."""
    texts = [value for value in row if type(value) is str]
    for value in row:
        if isinstance(value, (tuple, list)) and value:
            texts += _texts(value)
    return texts
