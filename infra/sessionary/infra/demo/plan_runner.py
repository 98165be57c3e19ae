"""Carries a plan out: one client per tenant and service, a heap of due actions, a few threads.

A session's actions run one after another, each at its time or, after a slow one, at once. The
clients stay open until `close`, because they answer the clean-up requests of sessions that have
ended.
"""

import heapq
import json
import logging
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path
from typing import NamedTuple, cast

from confluent_kafka import KafkaError, Message, Producer

from sessionary.infra.demo.plan import Action, BrokenRecord, IllegalEvent, Plan, PlannedSession
from sessionary.producers import Json, ProducerSettings, Session, SessionClient
from sessionary.producers.client_core.sessions import NewSession, send_creation
from sessionary.schemas.codec import Event, encode_event
from sessionary.schemas.errors import SessionaryError, Unavailable
from sessionary.schemas.events import (
    Payload,
    ProgressReported,
    ResourcesReleased,
    SessionPhaseChanged,
    SessionRecovered,
    StateUpdated,
    ToolCallFailed,
    ToolCallStarted,
    ToolCallSucceeded,
)
from sessionary.schemas.headers import event_headers
from sessionary.schemas.ids import GivenId, SessionKey, derived_id
from sessionary.schemas.kafka.clients import ORDERED, discard_producer
from sessionary.schemas.limits import MESSAGE_CHARACTERS_MAX
from sessionary.schemas.settings import KafkaSettings
from sessionary.schemas.types import Envelope, ErrorInfo

# One action of a plan, in the client's verbs.


BYTES_A_TOKEN = 4
_MODEL = "model-a"
_TRIES_MAX = 3
_USD_NANOS_IN, _USD_NANOS_OUT = 3_000, 15_000  # per token
_WORDS = ("session", "agent", "patch", "search", "method", "class", "returns", "value", "error", "test", "line", "file")
_TEXT = " ".join(_WORDS[n * n % 97 % len(_WORDS)] for n in range(4_000))


def filler_text(tokens: int) -> str:
    """Return a text of `tokens` tokens of 4 bytes each."""
    size = tokens * BYTES_A_TOKEN
    return (_TEXT * (size // len(_TEXT) + 1))[:size]


def illegal_event(kind: IllegalEvent) -> Payload:
    """Return an event that an Active session must not send."""
    match kind:
        case "recovered_while_active":
            return SessionRecovered()
        case "version_conflict":
            return StateUpdated(999, 1000, "{}")
        case "unknown_cleanup":
            return ResourcesReleased(derived_id("unknown", "cleanup"), (), None, host_lost=False)
        case "phase_order":
            return SessionPhaseChanged("persisting")


def perform_action(session: Session, action: Action) -> None:
    """Perform any action but `create` and `broken`.

    Blocks if the verb waits for a verdict. Raises as the verb does.
    """
    match action.verb:
        case "start":
            session.start()
        case "fail_start":
            session.lifecycle.fail_start("invalid_config", "the model's name is not configured")
        case "model_call":
            _model_call(session, action)
        case "tool_call":
            _tool_call(session, action)
        case "update_state":
            # One thread plays many sessions, also while brokers are away.
            session.update_state({**session.state, "step": action.step}, wait=False)
        case "progress":
            session.progress(action.step)
        case "illegal":
            session.emit(illegal_event(cast("IllegalEvent", action.name)))
        case "silence":
            session.lifecycle.detach()
        case _:
            _change_state(session, action)


def _change_state(session: Session, action: Action) -> None:
    match action.verb:
        case "pause":
            session.pause("waits for a person")
        case "resume":
            _retry_verdict(session.resume)
        case "error":
            session.error(ErrorInfo("retryable", "upstream_503", "the model's service is overloaded"))
        case "recover":
            _retry_verdict(session.recover)
        case "give_up":
            session.lifecycle.force_close("no repair in sight")
        case "complete":
            session.complete()
        case "close":
            session.close()
        case "cancel":
            session.cancel("called off")
        case _:
            raise AssertionError(f"no verb of a session is called {action.verb}")


def _model_call(session: Session, action: Action) -> None:
    # A call's tokens are those of its whole context; a turn has at most the new ones.
    session.message("user", filler_text(action.tokens_in)[:MESSAGE_CHARACTERS_MAX])
    session.message("assistant", filler_text(action.tokens_out)[:MESSAGE_CHARACTERS_MAX])
    session.usage(
        model=_MODEL,
        tokens_in=action.tokens_in,
        tokens_out=action.tokens_out,
        model_cost_usd_nanos=action.tokens_in * _USD_NANOS_IN + action.tokens_out * _USD_NANOS_OUT,
    )


def _tool_call(session: Session, action: Action) -> None:
    call_id = derived_id(session.session_id, "call", action.step)
    idem_key = derived_id(session.session_id, action.name, action.step)
    session.emit(ToolCallStarted(call_id, action.name, idem_key, "{}", 1, side_effect=False, queryable=False))
    if action.succeeded:
        session.emit(ToolCallSucceeded(call_id, action.name, idem_key, None, None, 1))
    else:
        session.emit(ToolCallFailed(call_id, action.name, idem_key, ErrorInfo("fatal", "not_found", ""), 1))


def _retry_verdict(verb: Callable[[], object]) -> None:
    """Call a verb that waits for a verdict, up to three times.

    The client sends its event only once.
    """
    for left in reversed(range(_TRIES_MAX)):
        try:
            verb()
            return
        except Unavailable as error:
            if left == 0:
                raise
            time.sleep(min(error.retry_after_s, 1.0))


# Records that a broken or hostile sender would send, made by a plain producer.
#
#     kind              what is wrong                      outcome
#     wrong_bytes       bytes that are not Avro            rejected: undecodable
#     unknown_schema    a fingerprint of no schema         rejected: unknown_schema
#     bad_key           a key that names no session        rejected: bad_key
#     key_mismatch      another session in the envelope    rejected: key_mismatch
#     foreign_tenant    another tenant in the envelope     rejected: foreign_tenant
#     stale_epoch       an epoch below the session's       rejected: stale_epoch
#     duplicate         one valid event sent twice         one applied, one duplicate
#
# Each acknowledged record becomes a journal line, in the format of the client's journal. A record
# may be in the log twice, if its first acknowledgement is lost.


_SEND_S = 30.0
_RENEW_S = 10.0
_POLL_S = 0.1
_log = logging.getLogger(__name__)


class _Record(NamedTuple):
    key: bytes
    value: bytes
    envelope: Envelope | None  # None: the record has no readable envelope
    times: int = 1


def _kafka_producer(settings: KafkaSettings) -> Producer:
    return Producer({**settings.client_config(), **ORDERED}, logger=_log)


class BrokenSender:
    """Sends broken records. Not thread-safe: one caller at a time.

    After 10 s without an acknowledgement a new producer sends all open records again: librdkafka
    may lose its last broker for ever.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        journal: Path,
        *,
        new_producer: Callable[[], Producer] | None = None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Connect lazily. Lines are appended to `journal`.

        `new_producer` and `clock_s` replace Kafka's producer and the monotonic clock for tests.
        """
        self._topic = settings.topics.events
        self._new_producer = new_producer or (lambda: _kafka_producer(settings))
        self._clock_s = clock_s
        self._producer = self._new_producer()
        self._open: dict[int, _Record] = {}  # by the number of the attempt
        self._attempts = 0
        self._progress_s = 0.0  # when an acknowledgement came, or the first attempt was made
        self._producer_id = str(uuid.uuid4())
        self._sequences: dict[str, int] = {}
        self._journal = journal.open("a")
        self.sent = 0
        self.delivered = 0

    def send_record(self, kind: BrokenRecord, session: PlannedSession) -> None:
        """Send one kind of record for `session`. Blocks until it is acknowledged.

        Raises `Unavailable` if the broker does not acknowledge it within 30 s.
        """
        record = self._make_record(kind, session)
        for _ in range(record.times):
            self.sent += 1
            self._produce(record)
        if not self._wait_acknowledged():
            raise Unavailable(f"Kafka does not acknowledge a record to {self._topic} within {_SEND_S:g} s", _SEND_S)

    def poll_acknowledgements(self) -> None:
        """Process acknowledgements that came after `send_record` stopped waiting.

        Does not block.
        """
        if not self._journal.closed:
            self._poll_producer(0)

    def close(self) -> None:
        """Wait up to 30 s for outstanding acknowledgements, then close the journal."""
        self._wait_acknowledged()
        self._journal.close()

    def _wait_acknowledged(self) -> bool:
        """Block until nothing is open, for 30 s at most; return whether nothing is."""
        deadline_s = self._clock_s() + _SEND_S
        while self._open and self._clock_s() < deadline_s:
            self._poll_producer(_POLL_S)
        return not self._open

    def _poll_producer(self, timeout_s: float) -> None:
        self._producer.poll(timeout_s)
        if self._open and self._clock_s() - self._progress_s >= _RENEW_S:
            former, self._producer = self._producer, self._new_producer()
            unsent, self._open = list(self._open.values()), {}
            discard_producer(former)
            for record in unsent:
                self._produce(record)

    def _produce(self, record: _Record) -> None:
        self._attempts += 1
        number = self._attempts

        def on_delivery(error: KafkaError | None, message: Message) -> None:
            if self._open.pop(number, None) is not None:  # otherwise a later attempt replaces it
                self._progress_s = self._clock_s()
                self._write_line(record, error, message)

        headers: list[tuple[str, str | bytes | None]] = []
        headers.extend(event_headers(record.envelope) if record.envelope is not None else ())
        if not self._open:
            self._progress_s = self._clock_s()
        self._open[number] = record
        self._producer.produce(self._topic, record.value, record.key, headers=headers, on_delivery=on_delivery)

    def _write_line(self, record: _Record, error: KafkaError | None, message: Message) -> None:
        envelope = record.envelope
        self.delivered += error is None
        line = {
            "event_id": envelope.event_id if envelope else "",
            "event_type": envelope.event_type if envelope else "",
            "tenant_id": envelope.tenant_id if envelope else "",
            "session_id": envelope.session_id if envelope else "",
            "producer_id": self._producer_id,
            "producer_seq": envelope.producer_seq if envelope else 0,
            "partition": message.partition(),
            "offset": message.offset(),
            "error": str(error) if error is not None else None,
        }
        self._journal.write(json.dumps(line) + "\n")

    def _make_record(self, kind: BrokenRecord, session: PlannedSession) -> _Record:
        key = SessionKey(session.tenant_id, session.session_id).encoded()
        match kind:
            case "wrong_bytes":
                return _Record(key, b"this is no Avro", None)
            case "unknown_schema":
                return _Record(key, b"\xc3\x01" + b"\xee" * 8 + b"some body", None)
            case "bad_key":
                envelope = self._make_envelope(session)
                key = b"no session at all"
            case "key_mismatch":
                envelope = self._make_envelope(session)._replace(session_id=str(uuid.uuid4()))
            case "foreign_tenant":
                envelope = self._make_envelope(session)._replace(tenant_id="mallory")
            case "stale_epoch":
                envelope = self._make_envelope(session, counted=True)._replace(epoch=0)
            case "duplicate":
                envelope = self._make_envelope(session, counted=True)
        value = encode_event(Event(envelope, ProgressReported(0.5, 1.0, kind)))
        return _Record(key, value, envelope, times=2 if kind == "duplicate" else 1)

    def _make_envelope(self, session: PlannedSession, *, counted: bool = False) -> Envelope:
        """Return a valid envelope.

        `counted`: the processor will count its sequence number, so the next one must be higher.
        """
        seq = self._sequences.get(session.session_id, 0) + 1
        if counted:
            self._sequences[session.session_id] = seq
        return Envelope(
            event_id=str(uuid.uuid4()),
            event_type="progress_reported",
            schema_version=1,
            tenant_id=session.tenant_id,
            session_id=session.session_id,
            user_id=session.user_id,
            agent_id=f"{session.service_id}-agent",
            agent_role=None,
            service_id=session.service_id,
            actor=None,
            epoch=1,
            producer_id=self._producer_id,
            producer_seq=seq,
            run_id=None,
            run_seq=None,
            step_id=None,
            causation_id=None,
            occurred_at=time.time_ns() // 1000,
            data_classes=session.data_classes,
        )


_THREADS = 6
_ERRORS_REPORTED_MAX = 20
_PROGRESS_EVERY_S = 0.5


class DemoCounts(NamedTuple):
    """The sums of the clients' counters. `sent` and `delivered` include broken records."""

    sent: int
    delivered: int
    dropped: int
    failed: int
    heartbeats: int
    actions_late_s_max: float


class _ActiveSession(NamedTuple):
    """A session with the actions that are left."""

    planned: PlannedSession
    todo: deque[Action]


class PlanRunner:
    """Carries out one plan. A context manager, which closes the clients."""

    def __init__(
        self,
        plan: Plan,
        environ: Mapping[str, str],
        tokens: Mapping[str, str],
        folder: Path,
        on_action_error: Callable[[str], None],
    ) -> None:
        """`environ`: the stack's variables. `tokens`: bearer token by tenant.

        `folder`: for journals and spool. `on_action_error` is called with the first 20 errors,
        on the threads of the runner.
        """
        self._plan = plan
        self._tokens = tokens
        self._folder = folder
        self._environ = environ
        self._on_action_error = on_action_error
        self._clients: dict[tuple[str, str], SessionClient] = {}
        self._sessions: dict[str, Session] = {}
        self._broken = BrokenSender(KafkaSettings.from_env(environ), self._journal_path("broken"))
        self._broken_lock = threading.Lock()
        self._errors = 0
        self._late_s_max = 0.0
        self._due: list[tuple[float, int, _ActiveSession]] = []
        self._open = 0
        self._changed = threading.Condition()
        self._began = 0.0
        self._counts: DemoCounts | None = None

    def __enter__(self) -> "PlanRunner":
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    @property
    def journal_paths(self) -> list[Path]:
        """The journals, as NDJSON files; complete after `close`."""
        return sorted(self._folder.glob("journal-*.ndjson"))

    @property
    def counts(self) -> DemoCounts:
        """The counters so far; final after `close`."""
        if self._counts is not None:
            return self._counts
        if self._broken_lock.acquire(blocking=False):  # otherwise a sender processes them
            try:
                self._broken.poll_acknowledgements()
            finally:
                self._broken_lock.release()
        counters = [client.counters for client in self._clients.values()]
        return DemoCounts(
            sent=sum(counter.sent for counter in counters) + self._broken.sent,
            delivered=sum(counter.delivered for counter in counters) + self._broken.delivered,
            dropped=sum(counter.dropped for counter in counters),
            failed=sum(counter.failed for counter in counters),
            heartbeats=sum(counter.heartbeats for counter in counters),
            actions_late_s_max=round(self._late_s_max, 3),
        )

    @property
    def open_sessions(self) -> int:
        """The number of sessions that have actions left."""
        return self._open

    def run_plan(self, progress: Callable[[str], None]) -> None:
        """Perform every action at its time. Blocks until the last one is done.

        Errors of actions are reported, and end their session's actions. Raises as opening a client
        does.
        """
        for session in self._plan.sessions:
            self._client_for(session)
        sessions = [_ActiveSession(session, deque(session.actions)) for session in self._plan.sessions]
        self._due = [(session.todo[0].at_s, n, session) for n, session in enumerate(sessions)]
        heapq.heapify(self._due)
        self._open = len(sessions)
        self._began = time.monotonic()
        # The threads live until the end: a session's heartbeats stop with the thread that used it
        # last.
        with ThreadPoolExecutor(_THREADS, "plan-runner") as pool:
            working = {pool.submit(self._run_thread) for _ in range(_THREADS)}
            while working:
                done, working = wait(working, _PROGRESS_EVERY_S, FIRST_COMPLETED)
                for future in done:
                    future.result()
                progress(
                    f"running {time.monotonic() - self._began:.0f} of {self._plan.duration_s:.0f} s: "
                    f"{len(sessions) - self._open} of {len(sessions)} sessions done, {self.counts.sent} events sent"
                )

    def close(self) -> None:
        """Flush and close every client. Blocks."""
        for client in self._clients.values():
            client.close()
        self._broken.close()
        self._counts = self.counts
        self._clients.clear()

    def _journal_path(self, name: str) -> Path:
        return self._folder / f"journal-{name}.ndjson"

    def _client_for(self, session: PlannedSession) -> SessionClient:
        name = (session.tenant_id, session.service_id)
        if name not in self._clients:
            settings = ProducerSettings.from_env(
                self._environ,
                api_token=self._tokens.get(session.tenant_id),
                journal_path=self._journal_path(f"{session.tenant_id}-{session.service_id}"),
                spool_dir=self._folder / "spool",
                handle_sigterm=False,
                poll_interval_s=0.0,  # time-outs and rejections are planned
            )
            client = SessionClient(
                tenant_id=session.tenant_id,
                service_id=session.service_id,
                agent_id=f"{session.service_id}-agent",
                settings=settings,
                on_error=lambda error: self._report_error(str(error)),
            )
            self._clients[name] = client
            # Confirms at once, as these agents hold nothing: its figures are the protocol's.
            client.on_cleanup(lambda _request: None)
        return self._clients[name]

    def _report_error(self, text: str) -> None:
        self._errors += 1
        if self._errors <= _ERRORS_REPORTED_MAX:
            self._on_action_error(text)

    def _run_thread(self) -> None:
        """One thread: take a due session, perform its action, put it back with its next one."""
        try:
            self._run_actions()
        finally:
            # All sessions are done, or this thread failed; then the others must not wait for its
            # session.
            self._open = 0

    def _run_actions(self) -> None:
        while (taken := self._next_due()) is not None:
            n, session = taken
            action = session.todo.popleft()
            try:
                self._perform(session.planned, action)
            except SessionaryError as error:
                self._report_error(
                    f"{session.planned.outcome} session {session.planned.session_id}, {action.verb}: {error}"
                )
                session.todo.clear()
            with self._changed:
                if session.todo:
                    heapq.heappush(self._due, (session.todo[0].at_s, n, session))
                else:
                    self._open -= 1
                self._changed.notify()

    def _next_due(self) -> tuple[int, _ActiveSession] | None:
        """Block until a session is due and return it; None if all are done."""
        with self._changed:
            while self._open:
                if not self._due:
                    self._changed.wait(0.1)
                    continue
                wait_s = self._due[0][0] - (time.monotonic() - self._began)
                if wait_s <= 0:
                    self._late_s_max = max(self._late_s_max, -wait_s)
                    _, n, session = heapq.heappop(self._due)
                    return n, session
                self._changed.wait(wait_s)
            self._changed.notify_all()
            return None

    def _perform(self, planned: PlannedSession, action: Action) -> None:
        if action.verb == "create":
            state: dict[str, Json] = {"run": planned.run_name, "step": 0}
            parts = (planned.user_id, state, planned.limits, planned.data_classes, None, 1, None, (None, None))
            new, given = NewSession(*parts, "process", {}), GivenId(planned.session_id, None)
            # The plan knows that no other process has the id: a verdict would only cost time.
            core = send_creation(self._client_for(planned).core, new, given, None, None)
            self._sessions[planned.session_id] = Session(core)
        elif action.verb == "broken":
            with self._broken_lock:
                self._broken.send_record(action.name, planned)  # type: ignore[arg-type]  # the plan names a kind
        else:
            perform_action(self._sessions[planned.session_id], action)
