"""Lets this process know the second rules for a while."""

from collections.abc import Iterator
from contextlib import contextmanager

from sessionary.schemas import rules as rules_module
from sessionary.schemas.codec import Event, catalogue, formats, framing
from sessionary.schemas.codec.framing import write_generally
from sessionary.schemas.rules import add_rules, known_rules
from tests.support.second_rules import SECOND, SECOND_RULES


@contextmanager
def second_rules_known() -> Iterator[None]:
    """Let this process know the second rules within the block."""
    if SECOND_RULES.version in known_rules():
        yield  # they are known already
        return
    add_rules(SECOND)
    _forget_schemas()
    try:
        yield
    finally:
        del rules_module._known[SECOND_RULES.version]
        _forget_schemas()


def second_activity(value: bytes) -> bytes:
    """Return an event of activity in the form that came with the second rules."""
    event = framing.Decoder().decode_event(value)
    assert isinstance(event, Event)
    with second_rules_known():
        format_ = formats.format_of(event)
        return write_generally(event, format_.header, format_)


def _forget_schemas() -> None:
    """Forget what was derived from the schemas that this process knew."""
    for cached in (catalogue.schemas_by, catalogue.writer_schemas, catalogue.schemas_as_of):
        cached.cache_clear()
    for cached_formats in (formats._build_current, formats.record_formats, framing._identity_reader):
        cached_formats.cache_clear()
    formats._CURRENT_FORMATS.clear()
    formats._OLDER_EVENTS.clear()
