from sessionary.sinks.core.column_times import NEVER_S
from sessionary.sinks.core.rows.dead_letters import DEAD_LETTER_COLUMNS, dead_letter_row
from tests.core.sinks.samples import raw_record


def test_a_dead_letter_can_always_be_written() -> None:
    letter = dict(
        zip(DEAD_LETTER_COLUMNS, dead_letter_row("audit", raw_record(b"\xff", timestamp_ms=-1), "why"), strict=True)
    )
    assert (letter["value"], letter["appended_at"], letter["detail"]) == (b"\xff", 0, "why")
    assert letter["personal_expires"] == NEVER_S
