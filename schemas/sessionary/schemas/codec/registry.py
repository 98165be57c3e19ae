"""A Confluent-compatible schema registry for the codec; needs the extra `registry`.

The caller makes, secures and closes the client. Schemas are registered under their full name
(Confluent's RecordNameStrategy), so that one topic may hold many types.
"""

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.error import SchemaRegistryError

from sessionary.schemas.codec.framing import SchemaRegistry
from sessionary.schemas.errors import SettingsError, Unavailable
from sessionary.schemas.settings import KafkaSettings
from sessionary.schemas.tls import trusting_context

# Looks schemas up in a registry on separate threads, so that the caller's thread never waits.
#
# A processor folds many partitions on one event loop. A look-up there would stop all of them for
# as long as the registry takes.


UNKNOWN_S = 1.0  # a schema may be registered at any time, so "unknown" is believed no longer
ANSWERS_MAX = 4_096
LOOK_UPS_MAX = 64  # under way or waiting for a thread
_THREADS = 4
_UNDER_WAY_S = 0.02


class _Answer(NamedTuple):
    """The registry's answer, and until when it is believed (monotonic s)."""

    schema: str | None  # None: it does not know the id, or `trouble` says why it gave no answer
    trouble: str
    until_s: float


class BackgroundLookups:
    """A `SchemaRegistry` whose `get_schema` does not wait. Thread-safe; made once per process.

    A schema never changes under its id, so it is kept; the oldest of 4,096 answers goes first.
    """

    def __init__(self, registry: SchemaRegistry, now_s: Callable[[], float] = time.monotonic) -> None:
        self._registry = registry
        self._now_s = now_s
        self._lock = threading.Lock()  # guards the two below
        self._answers: OrderedDict[int, _Answer] = OrderedDict()
        self._under_way: set[int] = set()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="schema-registry")

    def get_schema(self, schema_id: int) -> str:
        """Return the schema's JSON if it is known by now.

        Raises `KeyError` for an id that the registry did not know a moment ago, and `Unavailable`
        while a look-up is under way or after it failed; the same call may then be repeated.
        """
        with self._lock:
            answer = self._answers.get(schema_id)
            left_s = 0.0 if answer is None else answer.until_s - self._now_s()
            if answer is None or left_s <= 0:
                self._start_lookup(schema_id)
                raise Unavailable(f"schema registry: schema {schema_id} is being looked up", _UNDER_WAY_S)
        if answer.schema is not None:
            return answer.schema
        if answer.trouble:
            raise Unavailable(answer.trouble, left_s)
        raise KeyError(schema_id)

    def register_schema(self, full_name: str, schema: str) -> int:
        """Return the id of `schema`; registers it if it is new. May block. Raises `Unavailable`."""
        return self._registry.register_schema(full_name, schema)

    def _start_lookup(self, schema_id: int) -> None:
        if schema_id not in self._under_way and len(self._under_way) < LOOK_UPS_MAX:
            self._under_way.add(schema_id)
            self._threads.submit(self._look_up, schema_id)

    def _look_up(self, schema_id: int) -> None:
        try:
            answer = self._ask(schema_id)
        except Unavailable as error:
            answer = _Answer(None, error.what, self._now_s() + error.retry_after_s)
        with self._lock:
            self._under_way.discard(schema_id)
            self._answers[schema_id] = answer
            self._answers.move_to_end(schema_id)
            if len(self._answers) > ANSWERS_MAX:
                self._answers.popitem(last=False)

    def _ask(self, schema_id: int) -> _Answer:
        try:
            return _Answer(self._registry.get_schema(schema_id), "", math.inf)
        except KeyError:
            return _Answer(None, "", self._now_s() + UNKNOWN_S)


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
