"""Makes a decoder from settings: with a schema registry if one is configured."""

from sessionary.schemas.codec import Decoder
from sessionary.schemas.errors import SettingsError
from sessionary.schemas.settings import KafkaSettings

# A schema is fetched once. The caller retries after a failure.
_REGISTRY_TIMEOUT_S = 2


def decoder_for(settings: KafkaSettings, *, in_background: bool = False) -> Decoder:
    """Return a decoder, with a registry if `schema_registry_url` is set. Opens no connection.

    `in_background`: look schemas up on other threads. Decoding then never blocks; it raises
    `Unavailable` while a look-up is under way.

    Raises `SettingsError` if a registry is set and the extra `registry` is not installed.
    """
    if settings.schema_registry_url is None:
        return Decoder()
    try:
        # An extra: the core install does not bring it.
        from confluent_kafka.schema_registry import SchemaRegistryClient

        from sessionary.schemas.codec.lookups import BackgroundLookups
        from sessionary.schemas.codec.registry import ConfluentRegistry
    except ImportError as error:
        raise SettingsError(
            f"SESSIONARY_SCHEMA_REGISTRY_URL needs `pip install 'sessionary[registry]'`: {error}"
        ) from None
    config = {"url": settings.schema_registry_url, "timeout": _REGISTRY_TIMEOUT_S, "max.retries": 0}
    registry = ConfluentRegistry(SchemaRegistryClient(config))
    return Decoder(BackgroundLookups(registry) if in_background else registry)


__all__ = ["decoder_for"]
