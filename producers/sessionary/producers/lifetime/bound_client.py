"""What a client makes once per process: threads, connections, files, sequence numbers.

In a forked child none of these work: threads do not exist there, and files and numbers are the
parent's. So a fork parts the child's copy of the client from them, and its first use makes new ones
(POSIX leaves a child of a process with threads little else: no lock may be taken in between).
"""

import contextlib
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from sessionary.producers.control.cleanup_responder import CleanupHandler, CleanupResponder
from sessionary.producers.control.data_class_lookup import DataClassLookup
from sessionary.producers.control.token_check import REFUSED_TOKEN, start_token_check
from sessionary.producers.delivery.emitter import Emitter, SenderIdentity, SendGate
from sessionary.producers.delivery.sequences import SequenceRegistry, new_producer_id
from sessionary.producers.errors import AuthenticationFailed, ClientClosed
from sessionary.producers.following.follower import SessionFollower
from sessionary.producers.judgement.notices import Callbacks, Notices
from sessionary.producers.judgement.session_watch import SessionWatch
from sessionary.producers.migration.hand_over import HandOver
from sessionary.producers.ports import CleanupConsumer, Counters, MigrationConsumer, Ports
from sessionary.producers.process.guards import guard_callback
from sessionary.producers.process.process_exit import bind_to_process, exit_on_sigterm, keep_forever
from sessionary.producers.session.core import SharedServices
from sessionary.producers.session.heartbeat import Heartbeats
from sessionary.producers.session.pending_verdict import VerdictFollower
from sessionary.schemas.ids import SessionKey
from sessionary.schemas.types import DataClass

if TYPE_CHECKING:  # pydantic takes long to load
    from sessionary.producers.artifacts.library import ArtifactLibrary
    from sessionary.producers.settings import ProducerSettings


class ProcessBoundClient:
    """The parts of a client, from its opening to its end, and again in a forked child."""

    _artifacts: "ArtifactLibrary | None"

    def _open_client(
        self,
        tenant_id: str,
        identity: SenderIdentity,
        settings: "ProducerSettings",
        callbacks: Callbacks,
        ports: Ports | None,
    ) -> None:
        """Open the client; `ports` replace Kafka and the control API. Raises `SettingsError`."""
        self._tenant_id = tenant_id
        self._identity = identity
        self._settings = settings
        self._on_error = guard_callback(callbacks.on_error)
        self._callbacks = callbacks._replace(on_error=self._report_finding)
        self._given_ports = ports
        self._cleanup_handler: CleanupHandler | None = None
        self._migrations_taken: tuple[HandOver, int] | None = None  # by what, and how many at once
        self._producer_id = new_producer_id()
        self._opening, self._closing = threading.RLock(), threading.Lock()
        self._open_ports()
        self._is_closing = self._was_closed = False
        self._is_left = False  # true in a forked child until its first use of the client
        self._is_parents = False  # true in a forked child that closed the client without using it
        bind_to_process(self)
        if ports is None and settings.handle_sigterm and not settings.disabled:
            exit_on_sigterm()

    def close(self, timeout_s: float | None = None) -> None:
        """Close the client."""
        raise NotImplementedError

    def _open_ports(self) -> None:
        """Make what belongs to one process: threads, connections, files, sequence numbers."""
        self._gate = SendGate()
        self._sequences = SequenceRegistry(self._producer_id)
        self._errors, self._counts_lock = Counter[str](), threading.Lock()
        self._notices = Notices(self._callbacks)
        self._followers, self._followers_lock = weakref.WeakSet[SessionFollower](), threading.Lock()
        self._ports = self._given_ports or self._outside_ports()
        self._heartbeats = self._ports.heartbeats or Heartbeats(self._on_error, self._ports.place_of)
        if self._settings.disabled:
            self._heartbeats.close(0.0)
        self._start_watch()
        self._follower = VerdictFollower(self._on_error)
        self._services = SharedServices(
            self._ports.control,
            self._heartbeats,
            self._follower,
            self._settings.heartbeat_interval_s,
            self._settings.verdict_timeout_s,
            self._on_error,
            self._watch,
            {},
            self._ports.runs,
            self._ports.waits,
            self._artifacts,
            self._settings.quotas,
            self._settings.quota_wait_s,
        )

    def _outside_ports(self) -> Ports:
        from sessionary.producers.kafka_ports import kafka_ports  # takes long to load

        service_id = self._identity.service_id
        return kafka_ports(self._settings, self._tenant_id, service_id, self._producer_id, self._on_error)

    def _start_watch(self) -> None:
        """Begin to ask about sessions, which also checks the token; or check only that."""
        ports, interval_s = self._ports, self._settings.poll_interval_s
        self._watch = SessionWatch(ports.polls, self._notices, interval_s, ports.poll_timer)
        if ports.polls is not None and ports.poll_timer is None and not interval_s:
            start_token_check(ports.control, self._report_finding)

    def _report_finding(self, error: Exception) -> None:
        if isinstance(error, AuthenticationFailed):
            self._count_error(REFUSED_TOKEN)
        self._on_error(error)

    def _leave_parent(self) -> None:
        """Part from the parent process, in a forked child before anything else runs there."""
        self._gate.of_parent = True
        if self._gate.open or self._is_left:
            self._producer_id = new_producer_id()
        if self._gate.open:
            with contextlib.suppress(Exception):  # the child must start whatever another thread did
                self._ports.abandon_files()
        self._part_from_parent()

    def _part_from_parent(self) -> None:
        """Shut the gate until the first use. Takes no lock: its thread may not exist here."""
        if self._gate.open:
            self._gate.open = False
            self._is_left, self._is_closing = True, False
            keep_forever(self._ports)
        self._opening, self._closing = threading.RLock(), threading.Lock()

    def _reopen_in_child(self) -> None:
        """Open the client again if this is a forked child that uses it for the first time."""
        if not self._is_left or self._is_parents:
            return
        with self._opening:
            if self._is_left and not self._is_parents:
                self._open_ports()
                self._is_left = False
                self._start_handlers()

    def _start_handlers(self) -> None:
        """Answer requests again, in a forked child."""
        if self._cleanup_handler is not None:
            self._start_cleanups(self._cleanup_handler)

    def _start_cleanups(self, handler: CleanupHandler) -> None:
        if self._is_parents:
            raise self._closed_error()
        lookup = DataClassLookup(self._ports.control, self._on_error)

        def emitter_at(key: SessionKey, epoch: int) -> Emitter:
            emitter = self._new_emitter(key, None, ())
            emitter.epoch = epoch
            if not emitter.last_seq:  # of another client, or ended and forgotten
                emitter.add_data_classes(lookup.find_classes(key.session_id))
            return emitter

        self._sequences.keep_ended()
        self._ports.cleanups.start(CleanupResponder(handler, emitter_at, self._on_error))

    def _begin_stop(self) -> None:
        """Tell what works on threads of its own to stop; wait for nothing."""
        self._try_step(self._watch.close)
        with self._followers_lock:
            followers = list(self._followers)
        for follower in followers:
            self._try_step(follower.close)
        for requests in self._request_readers():
            self._close_reader(requests, 0.0)

    def _request_readers(self) -> list[CleanupConsumer | MigrationConsumer]:
        migrations = self._ports.migrations
        return [self._ports.cleanups, *([] if migrations is None else [migrations])]

    def _close_reader(self, requests: CleanupConsumer | MigrationConsumer, timeout_s: float) -> None:
        self._try_step(lambda: requests.close(timeout_s))

    def _stop_work(self, deadline: float) -> None:
        """Wait for what still sends events: clean-ups, and verdicts on sessions that were left."""
        for requests in self._request_readers():
            self._close_reader(requests, self._left_s(deadline))
        self._try_step(lambda: self._follower.close(self._left_s(deadline)))
        self._try_step(self._ports.close_idle)

    def _close_ports(self, deadline: float) -> int:
        """Close all parts, even if one fails; return how many events are not acknowledged."""
        self._begin_stop()
        self._stop_work(deadline)
        self._try_step(lambda: self._heartbeats.close(self._left_s(deadline)))
        self._gate.open = False
        try:
            return self._ports.transport.close(self._left_s(deadline))
        except Exception as error:  # noqa: BLE001 - a disk that fails must not raise into the agent
            self._on_error(error)
        return 0

    def _try_step(self, step: Callable[[], object]) -> None:
        try:
            step()
        except Exception as error:  # noqa: BLE001 - the other parts must be closed, and the events be delivered
            self._on_error(error)

    def _close_in_time(self, timeout_s: float) -> None:
        """Close all parts; a second call, or one of a child that never used them, does nothing."""
        if self._is_left:
            self._is_parents = True  # its gate is shut, and its ports are the parent's
            return
        with self._opening:
            self._is_closing = True
        deadline = time.monotonic() + timeout_s
        if not self._closing.acquire(timeout=max(timeout_s, 0.0)):
            return  # another thread closes it, and waits for longer
        try:
            if self._was_closed:
                return  # the exit of the process waits no longer than the call of before
            left = self._close_ports(deadline)
            self._was_closed = True
        finally:
            self._closing.release()
        if left:
            fate = "kept in the spool" if self._ports.delivery_policy == "spool" else "lost"
            self._on_error(ClientClosed(f"{left} events were not acknowledged before the client closed; {fate}"))

    def _keep_follower(self, follower: SessionFollower) -> None:
        """Let a follower end with the client."""
        with self._followers_lock:
            self._followers.add(follower)

    def _forget_follower(self, follower: SessionFollower) -> None:
        with self._followers_lock:
            self._followers.discard(follower)

    def _count_error(self, reason: str) -> None:
        with self._counts_lock:
            self._errors[reason] += 1

    def _read_counters(self) -> Counters:
        """Return the transport's numbers with those of the client itself."""
        counters = self._ports.transport.counters._replace(refused=self._watch.notices.refused)
        if not self._errors:
            return counters
        return counters._replace(errors=MappingProxyType({**counters.errors, **self._errors}))

    def _closed_error(self) -> ClientClosed:
        return ClientClosed("the client is closed; create a new one")

    def _new_emitter(
        self, key: SessionKey, user_id: str | None, data_classes: Sequence[DataClass], *, new: bool = False
    ) -> Emitter:
        self._reopen_in_child()
        if not self._gate.open:
            raise self._closed_error()
        return Emitter(
            self._ports.transport,
            self._gate,
            self._identity,
            key,
            self._sequences.sequence_for(key, new=new),
            user_id=user_id,
            data_classes=data_classes,
            registry=self._sequences,
        )

    def _left_s(self, deadline: float) -> float:
        """Return the seconds until a moment of the monotonic clock; 0 once it is over."""
        return max(deadline - time.monotonic(), 0.0)


__all__ = ["ProcessBoundClient"]
