"""Makes a decoder from settings: with a schema registry if one is configured."""

from sessionary.schemas.codec import Decoder
from sessionary.schemas.errors import SettingsError
from sessionary.schemas.settings import KafkaSettings


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
        from sessionary.schemas.codec.registry import BackgroundLookups, ConfluentRegistry, open_registry_client
    except ImportError as error:
        raise SettingsError(
            f"SESSIONARY_SCHEMA_REGISTRY_URL needs `pip install 'sessionary[registry]'`: {error}"
        ) from None
    registry = ConfluentRegistry(open_registry_client(settings))
    return Decoder(BackgroundLookups(registry) if in_background else registry)
