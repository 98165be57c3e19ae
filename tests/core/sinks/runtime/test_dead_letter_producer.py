import pytest

from sessionary.schemas.codec.record_sizes import batch_bytes
from sessionary.schemas.records import RejectedEvent
from sessionary.schemas.topics import REJECTED_BYTES_MAX
from sessionary.sinks.runtime.dead_letter_producer import encode_letter
from tests.core.sinks.samples import DECODER, raw_record


def test_a_value_too_large_for_a_letter_is_left_out_and_the_letter_says_so() -> None:
    fits, large = raw_record(b"v" * 1_000_000), raw_record(b"v" * REJECTED_BYTES_MAX)
    whole, letter = (DECODER.decode_record(encode_letter(found, "why").value) for found in (fits, large))
    assert isinstance(whole, RejectedEvent)
    assert isinstance(letter, RejectedEvent)
    assert whole.value == fits.value
    assert (letter.value, letter.headers, letter.source_offset) == (None, {}, 42)
    assert f"why (value of {REJECTED_BYTES_MAX} bytes left out" in letter.detail


@pytest.mark.parametrize("key_bytes", [1_100_000, REJECTED_BYTES_MAX, 20_000_000])
def test_a_letter_fits_whatever_the_size_of_the_key(key_bytes: int) -> None:
    key, value = encode_letter(raw_record(b"v", key=b"k" * key_bytes), "why")
    assert batch_bytes(key, value) <= REJECTED_BYTES_MAX
    letter = DECODER.decode_record(value)
    assert isinstance(letter, RejectedEvent)
    assert letter.value == b"v"
