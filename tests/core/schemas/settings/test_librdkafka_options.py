"""The settings of librdkafka that are passed through, and those that are not."""

import re

import confluent_kafka
import pytest

from sessionary.schemas.settings.librdkafka_options import check_options, option_variable, read_options
from tests.style.project import ROOT

_CONFIGURED = re.compile(r'"([a-z]+(?:\.[a-z]+)+)": ')
_READS_CONFIG = re.compile(r"client_config\(\)|reader_config|def _?\w*config\w*\(")


def _configured_names() -> set[str]:
    """Return the names of librdkafka that our code sets."""
    texts = [
        path.read_text("utf-8")
        for part in ("schemas", "producers", "stream_processors", "sinks")
        for path in (ROOT / part).rglob("*.py")
    ]
    return {name for text in texts if _READS_CONFIG.search(text) for name in _CONFIGURED.findall(text)}


def test_a_name_is_its_variable_in_lower_case_with_dots() -> None:
    environ = {"SESSIONARY_KAFKA_SSL_KEY_LOCATION": "key.pem", "SESSIONARY_TOPIC_PREFIX": "x", "KAFKA_SSL_CA": "y"}
    assert read_options(environ) == {"ssl.key.location": "key.pem"}
    assert option_variable("ssl.key.location") == "SESSIONARY_KAFKA_SSL_KEY_LOCATION"
    assert option_variable("ssl.ca.location") == "SESSIONARY_SSL_CA_LOCATION"


@pytest.mark.parametrize(
    "name",
    [
        "ssl.certificate.location",
        "ssl.key.pem",
        "sasl.oauthbearer.method",
        "client.rack",
        "broker.address.family",
        "debug",
    ],
)
def test_what_secures_or_places_a_connection_is_passed_through(name: str) -> None:
    values = {"sasl.oauthbearer.method": "oidc", "broker.address.family": "v4", "debug": "all"}
    check_options({name: values.get(name, "x")})


def test_whatever_our_clients_set_themselves_is_refused() -> None:
    names = _configured_names()
    assert len(names) > 25
    passed = set()
    for name in names:
        try:
            check_options({name: "1"})
        except ValueError as error:
            if "accepts no such value" in str(error):
                passed.add(name)
        else:
            passed.add(name)
    assert passed == set()


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("transactional.id", "exactly-once"),
        ("isolation.level", "exactly-once"),
        ("partitioner", "exactly-once"),
        ("acks", "exactly-once"),
        ("security.protocol", "SESSIONARY_SECURITY_PROTOCOL"),
        ("sasl.mechanisms", "SESSIONARY_SASL_MECHANISM"),
        ("ssl.ca.location", "SESSIONARY_SSL_CA_LOCATION"),
        ("socket.timeout.ms", "each role"),
        ("", "no setting"),
        ("oauth.cb", "no setting"),
        ("ssl..location", "no setting"),
    ],
)
def test_a_refusal_says_what_to_do(name: str, advice: str) -> None:
    variable = "SESSIONARY_KAFKA_" + name.upper().replace(".", "_")
    with pytest.raises(ValueError, match=f"^{re.escape(variable)}: .*{advice}"):
        check_options({name: "x"})


def test_the_same_settings_are_checked_by_one_producer(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, object]] = []
    monkeypatch.setattr(confluent_kafka, "Producer", made.append)
    for _ in range(3):
        check_options({"client.rack": "of this test"})
    assert len(made) == 1
