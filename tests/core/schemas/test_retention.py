"""Retention: calendar years, 30 days of personal data, and the figures of the first release."""

from datetime import UTC, datetime, timedelta
from itertools import chain, combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessionary.schemas import retention
from sessionary.schemas.retention import (
    DAY_US,
    DEFAULT_US,
    PERSONAL_US,
    Retention,
    compliance_tags,
    retention_of,
    unknown_retention,
)
from sessionary.schemas.types import DataClass

CLASSES: list[DataClass] = ["UNKNOWN", "none", "personal", "financial", "medical"]
COMBINATIONS = list(chain.from_iterable(combinations(CLASSES, n) for n in range(len(CLASSES) + 1)))
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
YEAR_2105_MS = 4_260_211_200_000


def micros(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(microseconds=1)


def years_later(moment: datetime, years: int) -> datetime:
    try:
        return moment.replace(year=moment.year + years)
    except ValueError:  # 29 February
        return moment.replace(year=moment.year + years, month=3, day=1)


def first_release(data_classes: tuple[DataClass, ...], appended_ms: int) -> Retention:
    """Return what the processor of 0.1.0 wrote into audit records."""

    def rounded(moment: datetime) -> int:
        return round(moment.timestamp() * 1000) * 1000

    appended = datetime.fromtimestamp(appended_ms / 1000, UTC)
    personal = rounded(appended + timedelta(days=30)) if "personal" in data_classes else None
    for data_class, name, years in (("financial", "sox_audit", 7), ("medical", "hipaa_privacy", 6)):
        if data_class in data_classes:
            return Retention(name, rounded(years_later(appended, years)), personal)
    if personal is not None:
        return Retention("gdpr_retention", personal, personal)
    return Retention("default", rounded(appended + timedelta(days=365)), None)


@given(st.sampled_from(COMBINATIONS), st.integers(0, YEAR_2105_MS))
def test_every_record_is_kept_as_by_the_processor_of_the_first_release(
    data_classes: tuple[DataClass, ...], appended_ms: int
) -> None:
    assert retention_of(data_classes, appended_ms * 1_000) == first_release(data_classes, appended_ms)


@pytest.mark.parametrize("data_classes", COMBINATIONS, ids=str)
@pytest.mark.parametrize("year", [1970, 1999, 2000, 2024, 2027, 2028, 2093, 2096, 2097, 2100])
def test_the_days_around_a_february_are_those_of_the_first_release(
    data_classes: tuple[DataClass, ...], year: int
) -> None:
    first = int(datetime(year, 2, 27, tzinfo=UTC).timestamp()) * 1_000
    for appended_ms in range(first, first + 5 * 86_400_000, 10_799_999):
        assert retention_of(data_classes, appended_ms * 1_000) == first_release(data_classes, appended_ms)


@pytest.mark.parametrize(
    ("appended", "seven_years", "six_years"),
    [
        (datetime(2028, 2, 28, 23, 59, tzinfo=UTC), (2035, 2, 28), (2034, 2, 28)),
        (datetime(2028, 2, 29, 12, tzinfo=UTC), (2035, 3, 1), (2034, 3, 1)),
        (datetime(2028, 3, 1, tzinfo=UTC), (2035, 3, 1), (2034, 3, 1)),
        (datetime(2093, 2, 28, tzinfo=UTC), (2100, 2, 28), (2099, 2, 28)),
    ],
)
def test_years_are_calendar_years(
    appended: datetime, seven_years: tuple[int, int, int], six_years: tuple[int, int, int]
) -> None:
    at = micros(appended)

    def same_time(day: tuple[int, int, int]) -> int:
        return micros(datetime(*day, appended.hour, appended.minute, tzinfo=UTC))

    assert retention_of(("financial",), at) == ("sox_audit", same_time(seven_years), None)
    assert retention_of(("medical",), at) == ("hipaa_privacy", same_time(six_years), None)


def test_the_longest_period_keeps_the_record_and_the_shortest_its_personal_columns() -> None:
    assert retention_of((), 0) == ("default", 365 * DAY_US, None)
    assert retention_of(("none",), 0) == ("default", 365 * DAY_US, None)
    assert retention_of(("personal",), 0) == ("gdpr_retention", 30 * DAY_US, 30 * DAY_US)
    all_classes = retention_of(["personal", "medical", "financial"], 0)
    assert all_classes == ("sox_audit", micros(datetime(1977, 1, 1, tzinfo=UTC)), 30 * DAY_US)
    assert type(all_classes) is Retention


def test_microseconds_are_kept() -> None:
    assert retention_of(("medical",), 1) == ("hipaa_privacy", micros(datetime(1976, 1, 1, tzinfo=UTC)) + 1, None)
    assert retention_of((), 1).retain_until == DEFAULT_US + 1


def test_bytes_that_cannot_be_read_may_be_personal() -> None:
    assert unknown_retention(5) == Retention("default", 5 + DEFAULT_US, 5 + PERSONAL_US)


def test_tags_follow_from_the_classes_alone() -> None:
    assert compliance_tags(()) == compliance_tags(["UNKNOWN", "none"]) == ()
    assert compliance_tags(["personal"]) == ("gdpr_retention",)
    assert compliance_tags(["personal", "medical", "financial", "medical"]) == (
        *("gdpr_retention", "hipaa_privacy", "sox_audit"),
    )


def test_a_period_beyond_the_calendar_is_an_error() -> None:
    with pytest.raises(ValueError, match="year"):
        retention_of(("financial",), micros(datetime(9999, 1, 1, tzinfo=UTC)))


def test_classes_that_are_sent_very_often_count_once_and_are_not_kept() -> None:
    few: list[DataClass] = ["personal", "financial"]
    expected, tags = retention_of(few, 0), compliance_tags(few)
    kept = retention._rule_of.cache_info().currsize
    assert (retention_of(few * 100_000, 0), compliance_tags(few * 100_000)) == (expected, tags)
    assert retention._rule_of.cache_info().currsize == kept
