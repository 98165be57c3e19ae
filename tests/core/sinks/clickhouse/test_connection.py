import pytest
from clickhouse_connect.driver.exceptions import DatabaseError, OperationalError, ProgrammingError

from sessionary.sinks.clickhouse.connection import classify_error
from sessionary.sinks.errors import OperatorError, Transient


def make_error(kind: type[DatabaseError], code: int | None) -> DatabaseError:
    return kind(f"Code: {code}. DB::Exception: text", code=code)


@pytest.mark.parametrize("code", [159, 202, 209, 210, 241, 242, 252, 286, 319, 999])
def test_faults_that_pass_are_transient(code: int) -> None:
    assert isinstance(classify_error(make_error(DatabaseError, code)), Transient)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (60, "no_table"),
        (81, "no_database"),
        (16, "no_column"),
        (192, "authentication"),
        (497, "no_right"),
        (516, "authentication"),
        (4_242, "code_4242"),
    ],
)
def test_faults_that_last_and_any_unknown_code_stop_the_sink(code: int, reason: str) -> None:
    found = classify_error(make_error(DatabaseError, code))
    assert isinstance(found, OperatorError)
    assert found.reason == reason


def test_without_a_code_a_connection_is_retried_and_misuse_is_not() -> None:
    assert isinstance(classify_error(OperationalError("Error executing HTTP request")), Transient)
    assert isinstance(classify_error(DatabaseError("HTTP 502")), Transient)
    assert isinstance(classify_error(ConnectionResetError()), Transient)
    assert isinstance(classify_error(ProgrammingError("Unrecognized column")), OperatorError)
    assert isinstance(classify_error(TypeError("bug")), OperatorError)


def test_an_error_that_is_classified_stays_as_it_is() -> None:
    error = Transient("network", "away")
    assert classify_error(error) is error
