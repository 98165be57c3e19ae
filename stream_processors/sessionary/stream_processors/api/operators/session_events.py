"""Events that a page of the control API sends for a person: sent, judged, and answered.

    events = SessionEvents(settings, tokens, assignment, others, EventSender(settings).send_event)

    async def pause(request: Request) -> Response:
        caller = events.require_operator(request)
        wanted = PersonsEvent("pause", caller.principal, lambda row: SessionPaused("manual"))
        judged = await events.judge_event(request, caller, wanted)
        return judged if isinstance(judged, Response) else json_response(judged_document(judged))

HTTP decides nothing. The worker that owns the session's partition appends an event to the events
topic, as any client does, waits until it is judged, and answers with the verdict: 200 if it was
applied, a problem of status 409 with the rejection's reason otherwise. Any other worker passes the
request on.

Each request is a separate producer. The ids of the producer and its events follow from the header
`Idempotency-Key`, the action, the principal and the session. So a request that is repeated with its
key is the same event again: it is applied once, and has the same answer, from any worker. The
event's epoch is the row's. If another event raised the epoch meanwhile, the rejection
(`stale_epoch`) is no answer: the event is sent again with the next number, at most `ATTEMPTS_MAX`
times.

A session takes only so many producers in one epoch. So requests that scripts make again and again,
and that change nothing twice, share a producer: only the last of them is known by its key.
"""

import asyncio
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from aiohttp.web import Request, Response
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from sessionary.schemas.codec import Event, encode_event
from sessionary.schemas.codec.value_bounds import find_invalid_value, find_long_text
from sessionary.schemas.events import (
    EVENT_TYPES,
    Payload,
    RequestsRepeated,
    SessionMigrationAborted,
    SessionMigrationOffered,
    SessionPaused,
    SessionResumed,
    SessionTakenOver,
    SessionTerminated,
)
from sessionary.schemas.headers import event_headers
from sessionary.schemas.ids import SessionKey, derived_id, partition_of, valid_name
from sessionary.schemas.kafka.clients import discard_producer
from sessionary.schemas.limits import (
    MIGRATION_TTL_MS_DEFAULT,
    MIGRATION_TTL_MS_MAX,
    MIGRATION_TTL_MS_MIN,
    NAME_CHARACTERS_MAX,
    OPERATOR_HOLD_MS_MAX,
    OPERATOR_HOLD_MS_MIN,
    TEXT_CHARACTERS_MAX,
)
from sessionary.schemas.records import SessionState
from sessionary.schemas.types import Envelope
from sessionary.stream_processors.access import Caller
from sessionary.stream_processors.api.lists import describe_open
from sessionary.stream_processors.api.problems import Problem, json_response, not_ready, parse_object
from sessionary.stream_processors.api.routing import OtherWorkers
from sessionary.stream_processors.api.session_poll import parse_session_id, tenant_of_operator, verdict_document
from sessionary.stream_processors.api.session_questions import AskedOwner, Question, require_session
from sessionary.stream_processors.api.tokens import TokenStore
from sessionary.stream_processors.core.sequencing import hash_event_id, last_offsets
from sessionary.stream_processors.errors import Lost
from sessionary.stream_processors.runtime.assignment import Assignment
from sessionary.stream_processors.runtime.partition_owner import PartitionOwner
from sessionary.stream_processors.settings import ProcessorSettings

# Appends single events to the events topic for people; blocks, so that a thread calls it.


_TIMEOUT_S: Final = 8.0


class LogPosition(NamedTuple):
    """Where an event is in the log."""

    partition: int
    offset: int


class EventSender:
    """Sends signed events, one at a time. Thread-safe. Its producer is made with the first event.

    A producer that failed is replaced: librdkafka was seen to find no broker again for minutes.
    """

    def __init__(self, settings: ProcessorSettings) -> None:
        self._settings = settings
        self._keys = settings.keys
        self._lock = threading.Lock()
        self._producer: Producer | None = None

    def send_event(self, event: Event) -> LogPosition:
        """Append an event to its session's partition; return its place. Blocks for up to 8 s.

        Raises `Lost` if it is not acknowledged; it may be in the log all the same.
        """
        reported: list[tuple[KafkaError | None, Message]] = []
        envelope = event.envelope
        key, value = SessionKey(envelope.tenant_id, envelope.session_id).encoded(), encode_event(event)
        headers: list[tuple[str, str | bytes | None]] = [*event_headers(envelope), self._keys.sign(key, value)]
        with self._lock:
            producer = self._producer = self._producer or self._made()
            try:
                producer.produce(
                    self._settings.topics.events,
                    value,
                    key,
                    headers=headers,
                    on_delivery=lambda error, message: reported.append((error, message)),
                )
                producer.flush(_TIMEOUT_S)
            except (BufferError, KafkaException) as error:
                self._drop()
                raise Lost(f"{envelope.event_type} was not sent: {error}") from error
            if not reported or reported[0][0] is not None:
                self._drop()
                raise Lost(f"{envelope.event_type} was not acknowledged: {reported[0][0] if reported else 'no answer'}")
        message = reported[0][1]
        partition, offset = message.partition(), message.offset()
        if partition is None or offset is None or offset < 0:
            raise Lost(f"the place of {envelope.event_type} in the log is not known")
        return LogPosition(partition, offset)

    def close(self) -> None:
        """Drop the producer; nothing is under way."""
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            discard_producer(producer)

    def _made(self) -> Producer:
        return Producer(
            {
                **self._settings.client_config(),
                "linger.ms": 0,
                "message.timeout.ms": int(_TIMEOUT_S * 1_000),
                "partitioner": "murmur2_random",
            }
        )


SERVICE_ID: Final = "control-api"  # of the envelope, unless the event says another one
ATTEMPTS_MAX: Final = 5
IDEMPOTENCY_KEY: Final = "Idempotency-Key"
_KEY_CHARACTERS_MAX: Final = 256
_WAIT_S: Final = 8.0  # for a verdict
# The second one: another request took the number of a shared producer.
_TRY_AGAIN: Final = frozenset({"stale_epoch", "producer_conflict"})
_ENVELOPE_VERSION: Final = 1
_DETAILS: Final[Mapping[str, str]] = {
    "question_open": "the session waits for an answer: approve or deny it",
    "no_question": "the session waits for no answer, or for that to another question",
    "late": "the session has timed out",
    "bad_signature": "the worker that judged it does not know the key by which it is signed: give every worker "
    "the same signing keys (SESSIONARY_SIGNING_KEYS_FILE)",
}

SendEvent = Callable[[Event], LogPosition]  # blocks; raises `Lost`


class PersonsEvent(NamedTuple):
    """An event that a person asks for.

    Attributes:
        action: Names the request, with its key.
        principal: Who asks: the event's `actor`.
        make_payload: Returns the payload from the session's committed row; may raise `Problem`. Not
            called if the request is a repetition, whose event is judged.
        service_id: The service of the event.
        shares_producer: It is harmless if such an event is applied twice.
    """

    action: str
    principal: str
    make_payload: Callable[[SessionState], Payload]
    service_id: str = SERVICE_ID
    shares_producer: bool = False


class JudgedEvent(NamedTuple):
    """An event that was applied, and the session after it. `verdict` as in the session's page."""

    row: SessionState
    event_id: str
    verdict: dict[str, Any]


class _Attempt(NamedTuple):
    """One event of a request: its producer, its number, its id."""

    producer_id: str
    seq: int
    key: str  # the request's

    @property
    def event_id(self) -> str:
        return derived_id(self.producer_id, self.seq, self.key)


class SessionEvents:
    """Sends the events for which people ask one worker."""

    def __init__(
        self,
        settings: ProcessorSettings,
        tokens: TokenStore,
        assignment: Assignment,
        others: OtherWorkers,
        send_event: SendEvent,
    ) -> None:
        self._settings = settings
        self._tokens = tokens
        self._assignment = assignment
        self._others = others
        self._send_event = send_event

    def require_operator(self, request: Request) -> Caller:
        """Return who asks. Raises `Problem`: 401 without a known token, 403 without the role."""
        return self._tokens.require_role(request.headers.get("Authorization"), "operator")

    def find_session(self, request: Request, caller: Caller) -> SessionKey:
        """Return the session of a request, of the caller's tenant, or of the tenant it names.

        Raises `Problem`: 400, or 403 for another tenant than the caller's.
        """
        tenant_id = tenant_of_operator(caller, request.query.get("tenant"))
        if tenant_id is None or not valid_name(tenant_id):
            detail = "the token is of no tenant: name the session's, as ?tenant=…"
            raise Problem(400, "invalid_value", "No tenant", detail)
        return SessionKey(tenant_id, parse_session_id(tenant_id, request.match_info["session_id"]).session_id)

    async def judge_event(self, request: Request, caller: Caller, event: PersonsEvent) -> JudgedEvent | Response:
        """Send an event and wait for its verdict; or return the answer of the partition's owner.

        Raises `Problem`: 409 with the reason if the event is rejected, 404 and 410 if there is no
        such session, 503 if there is no verdict after some seconds. Then the same request with the
        same key may be sent again.
        """
        session = self.find_session(request, caller)
        partition = partition_of(session.encoded(), self._settings.partitions)
        if partition not in self._assignment.owners:
            return await self._others.pass_on(request, partition)
        key = _request_key(request)
        name = () if event.shares_producer else (key,)
        producer_id = derived_id("people", *session, event.principal, event.action, *name)
        rejection = ""
        for _ in range(ATTEMPTS_MAX):
            owner = self._open_owner(partition)
            row = _row_of(owner, session, partition, caller)
            attempt, offset = _last_attempt(row, producer_id, key)
            event_type = event.action
            if offset is None:
                payload = event.make_payload(row)
                event_type = EVENT_TYPES[type(payload)]
                attempt = attempt._replace(seq=attempt.seq + 1)
                envelope = _envelope_of(session, row, event, attempt, event_type)
                offset = await self._append(Event(envelope, payload), owner)
                row = _row_of(owner, session, partition, caller)
            verdict = verdict_document(owner.recent_verdicts, row, session.encoded(), partition, offset)
            if verdict["outcome"] == "applied":
                return JudgedEvent(row, attempt.event_id, verdict)
            if verdict["outcome"] == "not_kept":
                detail = "this request was judged before; what became of it is no longer known"
                raise Problem(409, "not_kept", "Not kept", detail)
            rejection = f"{verdict['reason']}"
            if rejection not in _TRY_AGAIN:
                raise _rejected(rejection, event_type, row)
        raise not_ready(f"the session changed {ATTEMPTS_MAX} times while the event was judged ({rejection})")

    def list_open(self, row: SessionState, caller: Caller) -> list[dict[str, Any]]:
        """Return a session's open requests that the caller may see. Raises `Problem`.

        Its partition is open here.
        """
        partition = partition_of(SessionKey(row.tenant_id, row.session_id).encoded(), self._settings.partitions)
        return describe_open(row, self._open_owner(partition).state, caller)

    def _open_owner(self, partition: int) -> PartitionOwner:
        """Return the partition's owner. Raises `Problem` unless it is open, and surely ours."""
        owner = self._assignment.owners.get(partition)
        if owner is None or not owner.is_readable or not self._others.has_heard(owner.committed_s):
            raise not_ready(f"partition {partition} is not open here just now")
        return owner

    async def _append(self, event: Event, owner: PartitionOwner) -> int:
        """Append an event, and wait until it is judged; return its offset. Raises `Problem`."""
        if detail := find_long_text(event.envelope) or find_invalid_value(event):
            raise Problem(400, "invalid_value", "Bad value", detail)
        try:
            place = await asyncio.to_thread(self._send_event, event)
        except Lost as error:
            raise not_ready(str(error)) from None
        if not await owner.wait_until_committed(place.offset, _WAIT_S):
            raise not_ready("the event is sent, but not judged yet: ask again with the same Idempotency-Key")
        return place.offset


def judged_document(judged: JudgedEvent) -> dict[str, Any]:
    """Return the JSON document of an event that was applied, as `/openapi.json` describes it."""
    row = judged.row
    return {
        "session_id": row.session_id,
        "tenant_id": row.tenant_id,
        "state": row.state,
        "epoch": row.epoch,
        "version": row.version,
        "reason_code": row.reason_code,
        "snapshot_id": row.snapshot.snapshot_id,
        "event_id": judged.event_id,
        "verdict": judged.verdict,
    }


def _request_key(request: Request) -> str:
    key = request.headers.get(IDEMPOTENCY_KEY)
    if key is None:
        return str(uuid.uuid4())
    if not 0 < len(key) <= _KEY_CHARACTERS_MAX:
        detail = f"{IDEMPOTENCY_KEY} must have 1 to {_KEY_CHARACTERS_MAX} characters"
        raise Problem(400, "invalid_value", f"Bad {IDEMPOTENCY_KEY}", detail)
    return key


def _row_of(owner: PartitionOwner, session: SessionKey, partition: int, caller: Caller) -> SessionState:
    return require_session(AskedOwner(Question(session, partition, None, 0.0, caller), owner))


def _last_attempt(row: SessionState, producer_id: str, key: str) -> tuple[_Attempt, int | None]:
    """Return the producer's last event, and its offset.

    The offset is None if that event is none of this request, or is to be sent again.
    """
    ledger = next((each for each in row.producers if each.producer_id == producer_id), None)
    if ledger is None:
        return _Attempt(producer_id, 0, key), None
    attempt, offset = _Attempt(producer_id, ledger.last_seq, key), next(last_offsets(ledger), None)
    is_own = (ledger.recent_ids or b"").endswith(hash_event_id(attempt.event_id))
    is_over = any(rejection.offset == offset and rejection.reason in _TRY_AGAIN for rejection in row.rejections)
    return attempt, offset if is_own and not is_over else None


def _envelope_of(
    session: SessionKey, row: SessionState, event: PersonsEvent, attempt: _Attempt, event_type: str
) -> Envelope:
    return Envelope(
        event_id=attempt.event_id,
        event_type=event_type,
        schema_version=_ENVELOPE_VERSION,
        tenant_id=session.tenant_id,
        session_id=session.session_id,
        user_id=None,
        agent_id=row.agent_id,
        agent_role=None,
        service_id=event.service_id,
        actor=event.principal,
        epoch=row.epoch,
        producer_id=attempt.producer_id,
        producer_seq=attempt.seq,
        run_id=None,
        run_seq=None,
        step_id=None,
        causation_id=None,
        occurred_at=time.time_ns() // 1_000,
    )


def _rejected(reason: str, event_type: str, row: SessionState) -> Problem:
    detail = _DETAILS.get(reason, f"{event_type} was rejected ({reason}): the session is {row.state}")
    return Problem(409, reason, "Rejected", detail)


# The pages by which people step in: pause, resume and cancel a session, answer its question.
#
#     POST /v1/sessions/{session_id}/pause                   {"reason": text, "hold_ms": ms}
#     POST /v1/sessions/{session_id}/resume|cancel           {"reason": text}
#     POST /v1/sessions/{session_id}/approve|deny          {"reason": text, "question_id": id}
#     POST /v1/sessions/{session_id}/ask-again             {"reason": text}
#
# `hold_ms`, and both fields of an answer, may be missing. All need the role operator. A token of no
# tenant names the session's, as `?tenant=…`.


class PeoplePages:
    """Answers the requests of operators for one session."""

    def __init__(self, events: SessionEvents) -> None:
        self._events = events

    async def pause(self, request: Request) -> Response:
        """Answer `POST …/pause` with a `JudgedEvent`. Raises `Problem`."""
        self._events.require_operator(request)
        hold_ms = (await parse_object(request)).get("hold_ms")
        is_number = type(hold_ms) is int and OPERATOR_HOLD_MS_MIN <= hold_ms <= OPERATOR_HOLD_MS_MAX
        if hold_ms is not None and not is_number:
            detail = f"hold_ms must be a number from {OPERATOR_HOLD_MS_MIN} to {OPERATOR_HOLD_MS_MAX}"
            raise Problem(400, "invalid_value", "Bad hold_ms", detail)

        def hold(reason: str | None, _: str | None) -> Payload:
            return SessionPaused("manual", reason, as_operator=True, hold_ms=hold_ms)

        return await self._act(request, "pause", hold, needs_reason=True)

    async def resume(self, request: Request) -> Response:
        """Answer `POST …/resume` with a `JudgedEvent`. Raises `Problem`."""
        return await self._act(
            request, "resume", lambda reason, _: SessionResumed(message=reason, as_operator=True), needs_reason=True
        )

    async def cancel(self, request: Request) -> Response:
        """Answer `POST …/cancel` with a `JudgedEvent`. Raises `Problem`."""
        return await self._act(
            request,
            "cancel",
            lambda reason, _: SessionTerminated("cancelled", reason, as_operator=True),
            needs_reason=True,
        )

    async def approve(self, request: Request) -> Response:
        """Answer `POST …/approve` with a `JudgedEvent`. Raises `Problem`."""
        return await self._act(request, "approve", lambda reason, asked: _answer(reason, asked, approved=True))

    async def deny(self, request: Request) -> Response:
        """Answer `POST …/deny` with a `JudgedEvent`. Raises `Problem`."""
        return await self._act(request, "deny", lambda reason, asked: _answer(reason, asked, approved=False))

    async def ask_again(self, request: Request) -> Response:
        """Answer `POST …/ask-again` with the `AskedAgain` requests. Raises `Problem`."""
        caller = self._events.require_operator(request)
        reason = require_text("reason", (await parse_object(request)).get("reason"))
        requests: list[dict[str, Any]] = []

        def payload_of(row: SessionState) -> Payload:
            requests[:] = self._events.list_open(row, caller)
            if not requests:
                raise Problem(409, "nothing_open", "Nothing open", "no request of the session is open")
            return RequestsRepeated(reason, as_operator=True)

        event = PersonsEvent("ask-again", caller.principal, payload_of, shares_producer=True)
        judged = await self._events.judge_event(request, caller, event)
        if isinstance(judged, Response):
            return judged
        requests = requests or self._events.list_open(judged.row, caller)  # a repetition: those still open
        return json_response({**judged_document(judged), "requests": requests})

    async def _act(
        self,
        request: Request,
        action: str,
        make_payload: Callable[[str | None, str | None], Payload],
        *,
        needs_reason: bool = False,
    ) -> Response:
        """Send what `make_payload` returns for a reason and a question's id, and answer."""
        caller = self._events.require_operator(request)
        body = await parse_object(request)
        reason = _text("reason", body.get("reason"), TEXT_CHARACTERS_MAX)
        question_id = _text("question_id", body.get("question_id"), NAME_CHARACTERS_MAX)
        if needs_reason:
            require_text("reason", reason)

        def payload_of(row: SessionState) -> Payload:
            return make_payload(reason, question_id)

        event = PersonsEvent(action, caller.principal, payload_of)
        judged = await self._events.judge_event(request, caller, event)
        return judged if isinstance(judged, Response) else json_response(judged_document(judged))


def _answer(reason: str | None, question_id: str | None, *, approved: bool) -> SessionResumed:
    return SessionResumed(approved=approved, question_id=question_id, message=reason, as_operator=True)


def require_text(name: str, value: object) -> str:
    """Return a text of a request's body, which must have one. Raises `Problem` 400."""
    text = _text(name, value, TEXT_CHARACTERS_MAX)
    if text is None:
        raise Problem(400, "invalid_value", f"Bad {name}", f"say why, in the field `{name}`")
    return text


def _text(name: str, value: object, characters_max: int) -> str | None:
    """Return a text of a request's body without spaces around it, or None. Raises `Problem` 400."""
    if value is None:
        return None
    if not isinstance(value, str) or not 0 < len(value.strip()) <= characters_max:
        detail = f"{name} must be a text of 1 to {characters_max} characters"
        raise Problem(400, "invalid_value", f"Bad {name}", detail)
    return value.strip()


# The pages by which people let sessions change their service.
#
#     POST /v1/sessions/{session_id}/migrate          {"to": service, "ttl_ms": ms, "reason": text}
#     POST /v1/sessions/{session_id}/abort-migration  {"reason": text}
#     POST /v1/sessions/{session_id}/claim            {"for": service, "reason": text}
#
# `ttl_ms` may be missing. All need the role operator; a token of no tenant names the session's, as
# `?tenant=…`. A session that is offered moves once its target has loaded and accepted it. One that
# is claimed belongs to the service at once, whatever its owner does.


class MigrationPages:
    """Answers the requests of operators for another owner of one session."""

    def __init__(self, events: SessionEvents) -> None:
        self._events = events

    async def migrate(self, request: Request) -> Response:
        """Answer `POST …/migrate` with a `JudgedMigration`. Raises `Problem`."""
        caller = self._events.require_operator(request)
        body = await parse_object(request)
        target, ttl_ms = _require_service("to", body), body.get("ttl_ms", MIGRATION_TTL_MS_DEFAULT)
        if type(ttl_ms) is not int or not MIGRATION_TTL_MS_MIN <= ttl_ms <= MIGRATION_TTL_MS_MAX:
            detail = f"ttl_ms must be a number from {MIGRATION_TTL_MS_MIN} to {MIGRATION_TTL_MS_MAX}"
            raise Problem(400, "invalid_value", "Bad ttl_ms", detail)
        reason, limit_ms = require_text("reason", body.get("reason")), ttl_ms

        def offer(row: SessionState) -> Payload:
            return SessionMigrationOffered(str(uuid.uuid4()), target, limit_ms, reason, as_operator=True)

        return await self._answer(request, caller, PersonsEvent("migrate", caller.principal, offer))

    async def abort(self, request: Request) -> Response:
        """Answer `POST …/abort-migration` with a `JudgedMigration`. Raises `Problem`."""
        caller = self._events.require_operator(request)
        reason = require_text("reason", (await parse_object(request)).get("reason"))

        def call_off(row: SessionState) -> Payload:
            if row.migration is None or not row.migration.is_open:
                raise Problem(409, "unknown_migration", "Rejected", "the session has no open migration")
            return SessionMigrationAborted(reason, row.migration.migration_id, as_operator=True)

        return await self._answer(request, caller, PersonsEvent("abort-migration", caller.principal, call_off))

    async def claim(self, request: Request) -> Response:
        """Answer `POST …/claim` with a `JudgedClaim`. Raises `Problem`."""
        caller = self._events.require_operator(request)
        body = await parse_object(request)
        service_id, reason = _require_service("for", body), require_text("reason", body.get("reason"))

        def take_over(row: SessionState) -> Payload:
            return SessionTakenOver(reason, as_operator=True)

        event = PersonsEvent("claim", caller.principal, take_over, service_id)
        judged = await self._events.judge_event(request, caller, event)
        if isinstance(judged, Response):
            return judged
        return json_response({**judged_document(judged), "owner_service": judged.row.owner_service})

    async def _answer(self, request: Request, caller: Caller, event: PersonsEvent) -> Response:
        judged = await self._events.judge_event(request, caller, event)
        if isinstance(judged, Response):
            return judged
        migration = judged.row.migration
        assert migration is not None  # the event that was applied was about it
        names = {"migration_id": migration.migration_id, "to": migration.target_service, "step": migration.step}
        return json_response({**judged_document(judged), **names})


def _require_service(name: str, body: Mapping[str, Any]) -> str:
    """Return the service that a field of a body names. Raises `Problem` 400."""
    service_id = body.get(name)
    if not isinstance(service_id, str) or not valid_name(service_id):
        raise Problem(400, "invalid_value", f"Bad {name}", f"name the service, in the field `{name}`")
    return service_id
