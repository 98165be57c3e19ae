import pytest

from sessionary.stream_processors.core.session.rows import SessionRows
from sessionary.stream_processors.errors import judge_failed


@pytest.mark.interpreted  # a compiled function looks at the types of its arguments first
def test_a_failed_judge_is_named_by_offset_type_and_place_but_not_by_its_text() -> None:
    with pytest.raises(AttributeError) as caught:
        SessionRows().due_ms("secret")  # type: ignore[arg-type]
    halted = judge_failed("partition 2, offset 17", caught.value, 17, b"acme:s1")
    assert (halted.reason, halted.offset, halted.key) == ("judge_failed", 17, b"acme:s1")
    assert halted.detail.startswith("partition 2, offset 17: AttributeError at stream_processors/core/session/rows.py:")
    assert halted.detail.endswith(", in due_ms")
