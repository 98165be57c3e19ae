"""Which variables are settings: blanks, Kubernetes' Services, and names that are nearly right."""

import logging

import pytest

from docs.build.settings_table import settings
from sessionary.producers.settings import ProducerSettings
from sessionary.schemas.settings import KafkaSettings, read_variables
from sessionary.schemas.settings.variables import VARIABLES, find_near_misses, warn_of_near_misses
from sessionary.sinks.settings import SinkSettings
from sessionary.stream_processors.settings import ProcessorSettings

_SERVICES = ("sessionary", "sessionary-kafka", "sessionary-api", "sessionary-metrics", "sessionary-kafka-ssl-key")


def _service_links(service: str, port: int, protocol: str = "tcp", named: str = "") -> dict[str, str]:
    """Return what the kubelet sets for a Service with one port."""
    name, address = service.upper().replace("-", "_"), "10.96.4.7"
    url, place = f"{protocol}://{address}:{port}", f"{name}_PORT_{port}_{protocol.upper()}"
    links = {
        f"{name}_SERVICE_HOST": address,
        f"{name}_SERVICE_PORT": f"{port}",
        f"{name}_PORT": url,
        place: url,
        f"{place}_PROTO": protocol,
        f"{place}_PORT": f"{port}",
        f"{place}_ADDR": address,
    }
    return links | ({f"{name}_SERVICE_PORT_{named}": f"{port}"} if named else {})


def test_every_setting_of_every_role_is_known() -> None:
    assert {one.variable for one in settings() if not one.variable.endswith("…")} == VARIABLES


@pytest.mark.parametrize("protocol", ["tcp", "udp", "sctp"])
@pytest.mark.parametrize("service", [*_SERVICES, *(one.lower().replace("_", "-") for one in sorted(VARIABLES))])
def test_no_variable_of_a_service_is_a_setting(service: str, protocol: str) -> None:
    links = _service_links(service, 9092, protocol, "HTTP_METRICS")
    assert read_variables(links) == {}
    assert find_near_misses(links) == {}


def test_roles_and_client_start_beside_services_of_any_name() -> None:
    links = {name: value for service in _SERVICES for name, value in _service_links(service, 8600).items()}
    for settings_class in (ProducerSettings, ProcessorSettings, SinkSettings):
        assert settings_class.from_env(links) == settings_class.from_env({})
    mixed = ProcessorSettings.from_env({**links, "SESSIONARY_API_PORT": "8601"})  # a pod's own wins over a Service's
    assert mixed.api_port == 8601


@pytest.mark.parametrize("value", ["", " ", "\n", "\t\r\n"])
def test_a_variable_without_a_value_is_not_set(value: str) -> None:
    environ = dict.fromkeys(VARIABLES, value) | {"SESSIONARY_KAFKA_SSL_KEY_LOCATION": value}
    for settings_class in (ProducerSettings, ProcessorSettings, SinkSettings):
        assert settings_class.from_env(environ) == settings_class.from_env({})


def test_blanks_and_line_ends_around_a_value_are_no_part_of_it() -> None:
    settings = ProducerSettings.from_env(
        {
            "SESSIONARY_API_TOKEN": "s3cret\n",
            "SESSIONARY_CONTROL_URL": " http://api:8600\r\n",
            "SESSIONARY_BOOTSTRAP_SERVERS": "kafka:9092\n",
            "SESSIONARY_TOPIC_PREFIX": " staging ",
            "SESSIONARY_PARTITIONS": "8\n",
            "SESSIONARY_SPOOL_DIR": "/var/spool\n",
            "SESSIONARY_KAFKA_SSL_KEY_LOCATION": "key.pem\n",
        }
    )
    assert settings.api_token is not None
    assert settings.api_token.get_secret_value() == "s3cret"
    assert settings.control_url == "http://api:8600"
    assert (settings.bootstrap_servers, settings.topic_prefix, settings.partitions) == ("kafka:9092", "staging", 8)
    assert str(settings.spool_dir) == "/var/spool"
    assert settings.librdkafka == {"ssl.key.location": "key.pem"}
    tokens = ProcessorSettings.from_env({"SESSIONARY_API_TOKENS": '\n{"t1": "acme"}\n'}).api_tokens
    assert list(tokens) == ["t1"]


def test_a_password_keeps_its_blanks_but_not_a_files_line_end() -> None:
    environ = {"SESSIONARY_SASL_PASSWORD": " pass word \r\n", "SESSIONARY_KAFKA_SSL_KEY_PASSWORD": " key\n"}
    config = KafkaSettings.from_env(environ).client_config()
    assert (config["sasl.password"], config["ssl.key.password"]) == (" pass word ", " key")


def test_a_token_that_is_given_as_an_argument_loses_its_line_end() -> None:
    token = ProducerSettings.from_env({}, api_token="s3cret\n").api_token
    assert token is not None
    assert token.get_secret_value() == "s3cret"


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("SESSIONARY_BOOTSTRAP_SERVER", "SESSIONARY_BOOTSTRAP_SERVERS"),
        ("SESSIONARY_BOOTSTRAPSERVERS", "SESSIONARY_BOOTSTRAP_SERVERS"),
        ("sessionary_bootstrap_servers", "SESSIONARY_BOOTSTRAP_SERVERS"),
        ("SESSIONARY-BOOTSTRAP-SERVERS", "SESSIONARY_BOOTSTRAP_SERVERS"),
        ("SESSIONRY_BOOTSTRAP_SERVERS", "SESSIONARY_BOOTSTRAP_SERVERS"),
        ("SESSIONARY__API_TOKEN", "SESSIONARY_API_TOKEN"),
        ("SESSIONARY_SPOOL_MAX_BYTES", "SESSIONARY_SPOOL_BYTES_MAX"),
        ("SESSIONARY_CLOSE_TIMEOUT", "SESSIONARY_CLOSE_TIMEOUT_S"),
        ("SESSIONARY_CONTROLL_URL", "SESSIONARY_CONTROL_URL"),
    ],
)
def test_a_name_that_is_nearly_a_setting_is_found_with_the_nearest_one(written: str, meant: str) -> None:
    assert find_near_misses({written: "x"}) == {written: meant}


def test_settings_of_other_roles_and_foreign_variables_are_no_near_misses() -> None:
    foreign = {"SESSION_MANAGER", "SESSIONARY_METRICS_PORT_SINK_AUDIT", "SESSIONARY_TEAM", "PATH", "SESSIONNAME"}
    assert find_near_misses(dict.fromkeys({*VARIABLES, *foreign, "SESSIONARY_KAFKA_SSL_CIPHER_SUITES"}, "x")) == {}


def test_a_process_warns_once_of_each_variable_that_is_nearly_a_setting(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SESSIONARY_STATE_DIRS", "/tmp/x")
    with caplog.at_level(logging.WARNING, "sessionary"):
        warn_of_near_misses()
        warn_of_near_misses()
    said = [line.getMessage() for line in caplog.records if "SESSIONARY_STATE_DIRS" in line.getMessage()]
    assert said == ["SESSIONARY_STATE_DIRS is no setting and has no effect; did you mean SESSIONARY_STATE_DIR?"]
