from sessionary.schemas.records import RejectedEvent
from sessionary.schemas.topics import REJECTED_BYTES_MAX
from sessionary.sinks.runtime.dead_letter_producer import encode_letter
from tests.core.sinks.samples import DECODER, raw_record


def test_a_value_too_large_for_a_letter_is_left_out_and_the_letter_says_so() -> None:
    fits, large = raw_record(b"v" * 1_000_000), raw_record(b"v" * REJECTED_BYTES_MAX)
    whole, letter = (DECODER.decode_record(encode_letter(found, "why")) for found in (fits, large))
    assert isinstance(whole, RejectedEvent)
    assert isinstance(letter, RejectedEvent)
    assert whole.value == fits.value
    assert (letter.value, letter.headers, letter.source_offset) == (None, {}, 42)
    assert f"why (value of {REJECTED_BYTES_MAX} bytes left out" in letter.detail
