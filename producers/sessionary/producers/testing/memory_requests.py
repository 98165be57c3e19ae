"""The requests of a memory's judge to services, on their way to the clients' handlers."""

from threading import RLock
from typing import Protocol

from sessionary.producers.errors import QueueFull
from sessionary.producers.ports import OnRequest, Receipt
from sessionary.schemas.records import CleanupRequest, MigrationRequest

Asked = CleanupRequest | MigrationRequest


class AskingJudge(Protocol):
    """The part of the judge that is read here."""

    cleanups: list[CleanupRequest]
    migrations: list[MigrationRequest]


class MemoryRequests:
    """`CleanupConsumer` or `MigrationConsumer` of one service; of every one if none is named."""

    works_in_place = True

    def __init__(self, kind: type[Asked], tenant_id: str | None, service_id: str | None) -> None:
        self._kind = kind
        self._tenant_id = tenant_id
        self._service_id = service_id
        self.on_request: OnRequest | None = None

    def is_for(self, request: Asked) -> bool:
        """Return whether a request is one of its service's, and of its kind."""
        is_ours = self._tenant_id in (None, request.tenant_id) and self._service_id in (None, request.service_id)
        return is_ours and isinstance(request, self._kind)

    def start(self, on_request: OnRequest) -> None:
        """Pass requests on from now on."""
        self.on_request = on_request

    def close(self, timeout_s: float = 0.0) -> None:
        """Pass none."""
        self.on_request = None


class Deliveries:
    """The requests that no handler has answered yet. Thread-safe; no lock is held in handlers."""

    def __init__(self, judge: AskingJudge, lock: RLock) -> None:
        """`lock`: the memory's."""
        self._judge, self._lock = judge, lock
        self._readers: list[MemoryRequests] = []
        self._open: list[Asked] = []
        self._seen = (0, 0)

    def add_reader(self, reader: MemoryRequests, *, first: bool = False) -> None:
        """Pass requests to a client, to this one before all others if `first`."""
        with self._lock:
            self._readers.insert(0 if first else len(self._readers), reader)

    def collect(self) -> None:
        """Take the judge's requests since the last call. Hold the lock."""
        cleanups, migrations = self._judge.cleanups, self._judge.migrations
        self._open += [*cleanups[self._seen[0] :], *migrations[self._seen[1] :]]
        self._seen = len(cleanups), len(migrations)

    def pass_on(self) -> None:
        """Pass requests to their handlers; those without a handler, or without an answer, wait."""
        waiting: list[Asked] = []
        while (found := self._take_next()) is not None:
            request, on_request = found

            def on_receipt(receipt: Receipt, request: Asked = request) -> None:
                if receipt.error is not None:
                    waiting.append(request)

            try:
                on_request(request, on_receipt)
            except QueueFull:
                waiting.append(request)
        with self._lock:
            self._open += waiting

    def handler_of(self, request: Asked) -> OnRequest | None:
        """Return the handler of a request; None if there is none yet."""
        with self._lock:
            for reader in self._readers:
                if reader.on_request is not None and reader.is_for(request):
                    return reader.on_request
        return None

    def _take_next(self) -> tuple[Asked, OnRequest] | None:
        with self._lock:
            handlers = ((request, self.handler_of(request)) for request in self._open)
            found = next(((request, handler) for request, handler in handlers if handler is not None), None)
            if found is not None:
                self._open.remove(found[0])
            return found
