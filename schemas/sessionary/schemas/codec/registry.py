"""A Confluent-compatible schema registry for the codec; needs the extra `registry`.

The caller makes, secures and closes the client. Schemas are registered under their full name
(Confluent's RecordNameStrategy), so that one topic may hold many types.
"""

from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.error import SchemaRegistryError

from sessionary.schemas.errors import SettingsError, Unavailable
from sessionary.schemas.settings import KafkaSettings
from sessionary.schemas.tls import trusting_context

RETRY_AFTER_S = 5.0
# A schema is fetched once. The caller retries after a failure.
_REQUEST_TIMEOUT_S = 2
_HTTP_NOT_FOUND = 404


def open_registry_client(settings: KafkaSettings) -> SchemaRegistryClient:
    """Return a client of the registry of the settings. Opens no connection.

    Raises `SettingsError` for a malformed URL or a file of authorities that cannot be read.
    """
    config: dict[str, object] = {
        "url": settings.schema_registry_url,
        "timeout": _REQUEST_TIMEOUT_S,
        "max.retries": 0,
    }
    if settings.schema_registry_username is not None:
        password = settings.schema_registry_password.get_secret_value() if settings.schema_registry_password else ""
        config["basic.auth.user.info"] = f"{settings.schema_registry_username}:{password}"
    if (authority := settings.schema_registry_ca_location) is not None:
        trusting_context("SESSIONARY_SCHEMA_REGISTRY_CA_LOCATION", authority)  # it can be read
        config["ssl.ca.location"] = authority
    try:
        return SchemaRegistryClient(config)
    except ValueError as error:
        raise SettingsError(f"SESSIONARY_SCHEMA_REGISTRY_URL: {error}") from None


class ConfluentRegistry:
    """Adapts a `SchemaRegistryClient` to `SchemaRegistry`; the client caches schemas."""

    def __init__(self, client: SchemaRegistryClient) -> None:
        self._client = client

    def get_schema(self, schema_id: int) -> str:
        """Return the schema's JSON; may block on HTTP.

        Raises `KeyError` for an unknown id, `Unavailable` for any other failure.
        """
        try:
            text = self._client.get_schema(schema_id).schema_str
        except SchemaRegistryError as error:
            if error.http_status_code == _HTTP_NOT_FOUND:
                raise KeyError(schema_id) from None
            raise Unavailable(f"schema registry: {error}", RETRY_AFTER_S) from error
        except Exception as error:  # the HTTP client's errors have no common base
            raise Unavailable(f"schema registry: {type(error).__name__} {error}", RETRY_AFTER_S) from error
        if text is None:
            raise KeyError(schema_id)
        return text

    def register_schema(self, full_name: str, schema: str) -> int:
        """Return the id of `schema` under the subject `full_name`; registers it if it is new.

        May block on HTTP. Raises `Unavailable`.
        """
        try:
            return self._client.register_schema(full_name, Schema(schema, "AVRO"))
        except Exception as error:  # the HTTP client's errors have no common base
            raise Unavailable(f"schema registry: {type(error).__name__} {error}", RETRY_AFTER_S) from error
