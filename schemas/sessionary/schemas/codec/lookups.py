"""Looks schemas up in a registry on threads of its own, so that the caller's thread never waits.

A processor folds many partitions on one event loop. A look-up there would stop all of them for as
long as the registry takes.
"""

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from sessionary.schemas.codec.framing import SchemaRegistry
from sessionary.schemas.errors import Unavailable

UNKNOWN_S = 1.0  # a schema may be registered at any time, so "unknown" is believed no longer
ANSWERS_MAX = 4_096
LOOK_UPS_MAX = 64  # under way or waiting for a thread
_THREADS = 4
_UNDER_WAY_S = 0.02


class _Answer(NamedTuple):
    """What the registry said, and until when it is believed (monotonic s)."""

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
