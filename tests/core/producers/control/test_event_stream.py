"""Messages come out whole, however their bytes are cut."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessionary.producers.control import event_stream
from sessionary.producers.control.event_stream import ChunkedBody, EventParser, StreamedEvent

STREAM = (
    ':\n\nid: 0:5\nevent: state\ndata: {"n": 1}\n\n: a comment\n\nretry: 5\n\n'
    "event: state\r\nid: 0:6\r\ndata: ä\r\ndata: b\r\n\r\nevent: end\ndata: {}\n\n"
).encode()
MESSAGES = [
    StreamedEvent("state", "0:5", '{"n": 1}'),
    StreamedEvent("state", "0:6", "ä\nb"),
    StreamedEvent("end", None, "{}"),
]


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    return [data[first:last] for first, last in itertools.pairwise(places)]


@given(st.lists(st.integers(0, len(STREAM)), max_size=20))
def test_messages_are_put_together_from_any_pieces(cuts: list[int]) -> None:
    parser = EventParser()
    assert [event for piece in pieces(STREAM, cuts) for event in parser.take_bytes(piece)] == MESSAGES


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=6), st.lists(st.integers(0, 400), max_size=20))
def test_a_chunked_body_is_decoded_from_any_pieces(chunks: list[bytes], cuts: list[int]) -> None:
    sent = b"".join(b"%x;x=y\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
    body = ChunkedBody()
    assert b"".join(body.take_bytes(piece) for piece in pieces(sent, cuts)) == b"".join(chunks)
    assert body.is_over


def test_what_is_no_such_stream_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in (b"<html>\r\n", b"x" * 2_000):
        with pytest.raises(ValueError, match=r"invalid literal|without a size"):
            ChunkedBody().take_bytes(wrong)
    monkeypatch.setattr(event_stream, "MESSAGE_BYTES_MAX", 100)
    with pytest.raises(ValueError, match="more than 100 bytes"):
        EventParser().take_bytes(b"data: " + b"x" * 100)
