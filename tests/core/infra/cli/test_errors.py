"""Every expected error has an exit code."""

import pytest
from confluent_kafka import KafkaError, KafkaException

from sessionary.infra.cli.errors import CheckFailed, NotFound, error_text, exit_code
from sessionary.infra.local.errors import StartFailed
from sessionary.producers.errors import AuthenticationFailed, SessionLost
from sessionary.schemas.errors import Invalid, SessionaryError, SettingsError, Unavailable
from sessionary.sinks.errors import OperatorError


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CheckFailed("x"), 1),
        (SettingsError("x"), 2),
        (AuthenticationFailed("x"), 2),
        (Unavailable("x", 1.0), 3),
        (ConnectionRefusedError("x"), 3),
        (NotFound("x"), 4),
        (FileNotFoundError("x"), 4),
        (SessionLost("x"), 4),
        (Invalid("invalid_value", "x"), 5),
        (SessionaryError("x"), 5),
        (StartFailed("x"), 6),
        (OperatorError("not_migrated", "x"), 6),
        (PermissionError("x"), 6),
        (KafkaException(KafkaError(KafkaError._INVALID_ARG, "ssl.key.location failed")), 2),
        (KafkaException(KafkaError(KafkaError._TRANSPORT)), 3),
        (KeyboardInterrupt(), 130),
        (ZeroDivisionError("x"), None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_expected_error_has_its_code_and_a_fault_of_ours_has_none(error: BaseException, code: int | None) -> None:
    assert exit_code(error) == code


def test_a_configuration_that_librdkafka_refuses_names_the_variable() -> None:
    text = "Failed to create consumer: ssl.certificate.location failed: error:0A080002:SSL routines::system lib"
    error = KafkaException(KafkaError(KafkaError._INVALID_ARG, text))
    assert error_text(error) == f"{text}: check SESSIONARY_KAFKA_SSL_CERTIFICATE_LOCATION"
    assert error_text(KafkaException(KafkaError(KafkaError._TRANSPORT, "no broker"))) == "no broker"
