from sessionary.sinks.core.retention import retention_of
from tests.support.sink_records import DAY_US


def test_the_row_stays_for_the_longest_period_and_personal_columns_for_30_days() -> None:
    assert retention_of(("none",), 0) == ("default", 365 * DAY_US, None)
    assert retention_of(("personal",), 0) == ("gdpr_retention", 30 * DAY_US, 30 * DAY_US)
    name, until, personal = retention_of(("personal", "financial", "medical"), 0)
    assert (name, personal) == ("sox_audit", 30 * DAY_US)
    assert 7 * 365 * DAY_US <= until <= (7 * 365 + 2) * DAY_US
