"""The errors of the client. Those above `ProducerError` are shared with the other roles.

SessionaryError
├── Invalid(reason, detail)        bad input: a name, id or value; retrying does not help
│   ├── EncodeError                a value does not fit its event's schema
│   ├── NotAllowed(state, event_type)  the session's state or owner does not allow the verb
│   └── BoundReached               a session or run has as many parts as it may have
├── Unavailable(retry_after_s)     Kafka or the control API does not answer; retry the call
├── SettingsError                  a setting is missing or malformed
│   └── SpoolUnusable              the spool's folder cannot be used
└── ProducerError
    ├── AuthenticationFailed       Kafka or the control API rejects our credentials
    ├── QueueFull                  policy `block`: no room within the bounded wait
    ├── DeliveryFailed(event_id)   an event that the caller waits for was not delivered
    ├── Rejected(reason)            the processor rejected an event that the caller waits for
    ├── EventRejected(reason)       the processor rejected an event: for `on_rejected`
    ├── SessionTimeout(state)     a clock of the session has fired: for `on_timed_out`
    ├── SessionLost                the session does not exist, or is archived
    │   └── RunGone                the run or task finished, and is no longer kept
    ├── SessionEnded               a verb on a session that this object has ended
    ├── SessionExists              a new session was to have the id of one that exists
    ├── SessionFenced(epoch)       another process took the session over
    ├── SessionHeld(reason_code)   others paused the session: for `on_paused`
    ├── StateMismatch              the state that the caller knows is not the processor's
    ├── ProducerConflict           another process uses this client's producer id
    ├── UnreadableRequest          a clean-up request stops its partition until an upgrade
    ├── HostLost                   for a clean-up handler to raise: the session's machine is gone
    ├── SpoolDamaged(path, lost)    a spool file has bytes that cannot be read
    ├── SpoolRemoved(path)         spool files were removed or replaced while the client used them
    ├── ArtifactMissing(uri)       an artifact's body is not in its store
    │   └── ArtifactDeleted(uri)   it has expired, and is marked as deleted
    ├── ArtifactDamaged(uri)       an artifact's body is not the one that was saved
    ├── ModelSlow(took_ms)         a model took longer than `model_ms`; its answer is kept
    ├── ModelTimeout(limit_ms)     a model or a step took longer than its limit; it may be retried
    ├── VerdictPending(verb)       another verb while a verdict is awaited
    └── ClientClosed               a verb after `close`, or on a parent's session in a forked child

Those of runs and tool calls are in `sessionary.producers.durable.errors`, those of replays in
`sessionary.producers.replay.errors`.
"""

from pathlib import Path

from sessionary.schemas.errors import DecodeError, EncodeError, Invalid, SessionaryError, SettingsError, Unavailable
from sessionary.schemas.types import RejectionReason


class NotAllowed(Invalid):
    """The session's state, or its owner, does not allow this verb. Nothing was sent.

    Raised only if the processor is certain to reject the event. An event that another process may
    have made possible is sent, and judged.

    Attributes:
        reason: The reason that the processor would give, for example `illegal_transition`.
        detail: The forbidden verb and the remedy, for people.
        state: The session's state, as this object knows it.
        event_type: The type of the event that the verb sends.
    """

    def __init__(self, reason: RejectionReason, detail: str, state: str, event_type: str) -> None:
        super().__init__(reason, detail)
        self.state = state
        self.event_type = event_type


class BoundReached(Invalid):
    """A session has as many open runs, or a run or session as many parts, as it may have.

    Raised before a run or a step begins its work, and before an artifact is reported; its body, or
    a large input of the step, may be stored. Counts the runs whose blocks are open in this process,
    the parts that this object has begun, and those that a run had when it was resumed.

    Attributes:
        reason: The reason that the processor would give: `too_many_runs` or `too_many_children`.
        detail: What is full, what did not begin, and the remedy, for people.
    """


class ProducerError(SessionaryError):
    """Base of the errors that only the client raises."""


class SpoolUnusable(SettingsError):
    """The spool's folder cannot be used. A client continues without it, and reports this once."""


class AuthenticationFailed(ProducerError):
    """Kafka or the control API rejects the client's credentials; retrying does not help.

    The message names the principal, never a secret.
    """


class QueueFull(ProducerError):
    """Policy `block`: the delivery queue had no room for `block_timeout_s` seconds.

    The event was not taken. The same call may succeed later.
    """


class DeliveryFailed(ProducerError):
    """An event that the caller waits for was not delivered. The message gives the reason.

    Attributes:
        event_id: The event's id.
    """

    def __init__(self, event_id: str, why: str) -> None:
        super().__init__(f"event {event_id} was not delivered: {why}")
        self.event_id = event_id


class Rejected(ProducerError):
    """The processor rejected an event that the caller waits for. The session is unchanged.

    Attributes:
        event_type: The type of the rejected event, for example `session_resumed`.
        reason: One of the rejection reasons; `UNKNOWN` if the processor no longer knows it.
            `operator_only`: an operator holds the session; the message names the principal, and
            until when.
    """

    def __init__(self, event_type: str, reason: RejectionReason, detail: str = "") -> None:
        super().__init__(f"{event_type} was rejected: {reason}" + (f": {detail}" if detail else ""))
        self.event_type = event_type
        self.reason: RejectionReason = reason


class EventRejected(ProducerError):
    """The processor rejected an event that this client sent. The session is unchanged.

    `on_rejected` is called with it; no verb raises it.

    Attributes:
        session_id: The session.
        event_id: The event's id.
        event_type: The event's type, for example `session_activity`.
        reason: One of the rejection reasons; `UNKNOWN` if the processor no longer knows it.
    """

    def __init__(self, session_id: str, event_id: str, event_type: str, reason: RejectionReason) -> None:
        super().__init__(f"session {session_id}: {event_type} (event {event_id}) was rejected: {reason}")
        self.session_id = session_id
        self.event_id = event_id
        self.event_type = event_type
        self.reason: RejectionReason = reason


class SessionTimeout(ProducerError):
    """A clock of the session has fired. `on_timed_out` is called with it; no verb raises it.

    Attributes:
        session_id: The session.
        state: `Timeout`: `resume` leads back to Active within the limit `grace_ms`; `Terminated`:
            the session is over.
        reason_code: Which clock: `inactive`, `idle`, `max_duration`, `timeout_cleanup`,
            `init_timeout` or `recovery_failed`.
    """

    def __init__(self, session_id: str, state: str, reason_code: str) -> None:
        cure = "resume() within its grace period continues it" if state == "Timeout" else "create a new one"
        super().__init__(f"session {session_id} timed out ({reason_code}) and is in {state}: {cure}")
        self.session_id = session_id
        self.state = state
        self.reason_code = reason_code


class SessionLost(ProducerError):
    """The processor has no such session, or no longer has it."""


class RunGone(SessionLost):
    """The run or task finished so long ago that it is no longer kept: 30 days by default.

    For 14 days it is known to be gone; then it is as one that never was.
    """


class SessionEnded(ProducerError):
    """The session has ended. Create a new one."""


class SessionExists(ProducerError):
    """The id of a new session is that of one that exists. Nothing was sent into that one.

    The object that was to be made is lost: none of its messages is in the session, and leaving its
    block ends nothing.

    Attributes:
        session_id: The session that exists.
    """

    def __init__(self, session_id: str, how: str = "exists: continue it by `client.open` with its id") -> None:
        super().__init__(f"session {session_id} {how}")
        self.session_id = session_id


class SessionFenced(ProducerError):
    """Another process has the session: this object's events since then were rejected.

    Every further verb of the object raises this, and sends nothing. A client of the service that
    owns the session can take it back by `client.attach(session_id, take_over=True)`.

    Attributes:
        session_id: The session.
        holder: The producer id of the other client.
        epoch: The session's epoch when this client learned of it; its own was lower.
        moved_to: The service that owns the session now; None if it is this client's, or not known.
    """

    def __init__(self, session_id: str, holder: str, epoch: int, moved_to: str | None = None) -> None:
        if moved_to is None:
            what = (
                f"was taken over by the client {holder} in epoch {epoch}; "
                "attach(session_id, take_over=True) takes it back"
            )
        else:
            what = (
                f"belongs to the service {moved_to} since epoch {epoch} (client {holder}): "
                "stop working on it, that service goes on"
            )
        super().__init__(f"session {session_id} {what}")
        self.session_id = session_id
        self.holder = holder
        self.epoch = epoch
        self.moved_to = moved_to


class SessionHeld(ProducerError):
    """Others paused the session, as an operator: verbs that need it Active raise meanwhile.

    Once an operator resumes the session, `on_resumed` is called. Events that were sent in between
    were rejected.

    Attributes:
        session_id: The session.
        reason_code: Why it is paused: `manual` or `review`.
    """

    def __init__(self, session_id: str, reason_code: str) -> None:
        super().__init__(f"session {session_id} was paused by others ({reason_code})")
        self.session_id = session_id
        self.reason_code = reason_code


class StateMismatch(ProducerError):
    """The state that a session's object knows is not the one that the processor has.

    Another process updated it, or an update of this object was rejected or lost. `sync` adopts the
    processor's.

    Attributes:
        session_id: The session.
        known: Version and SHA-256, as hex, of the JSON that this object knows.
        committed: Those of the processor.
    """

    def __init__(self, session_id: str, known: tuple[int, str], committed: tuple[int, str]) -> None:
        super().__init__(
            f"session {session_id}: this object knows version {known[0]} of the state with the hash {known[1]}, the "
            f"processor has version {committed[0]} with the hash {committed[1]}; sync() adopts that"
        )
        self.session_id = session_id
        self.known = known
        self.committed = committed


class ProducerConflict(ProducerError):
    """Another process uses this client's producer id, so an event of this session was rejected.

    The session continues with a new producer id. The rejected events are on the rejected topic.

    Attributes:
        session_id: The session.
        producer_id: The id that two processes use.
    """

    def __init__(self, session_id: str, producer_id: str) -> None:
        super().__init__(
            f"session {session_id}: another process uses the producer id {producer_id}, so events of one of them "
            "were rejected (producer_conflict); this client continues with a new id. Was the process copied, or a "
            "machine restored from a snapshot while it ran?"
        )
        self.session_id = session_id
        self.producer_id = producer_id


class HostLost(ProducerError):
    """The machine that held a session's resources is gone, and they with it.

    A clean-up handler raises this. The clean-up is then recorded as released by the loss of the
    host, and the key figures count it apart: neither as reclaimed nor as failed.
    """


class UnreadableRequest(ProducerError):
    """A clean-up request cannot be read, mostly because its schema is newer than this client.

    Its partition stops there; the other partitions proceed. The request stays in the log: a newer
    client of the same service continues with it.

    Attributes:
        topic: The topic of the clean-up requests.
        partition: The partition that stops.
        offset: The request's offset, which is not committed.
    """

    def __init__(self, topic: str, partition: int, offset: int, group_id: str, why: DecodeError) -> None:
        if why.reason == "undecodable":
            cure = (
                f"no version reads such bytes; to leave the record out, close the service's clients and "
                f"set the offset of group {group_id} to {offset + 1}"
            )
        else:
            cure = "its schema is newer than this client; upgrade the package sessionary in this process"
        super().__init__(
            f"the clean-up request in {topic}, partition {partition}, offset {offset} cannot be read ({why}): {cure}. "
            "Until then this client answers no further request of that partition"
        )
        self.topic = topic
        self.partition = partition
        self.offset = offset


class SpoolDamaged(ProducerError):
    """A spool file has bytes that cannot be read: its disk or machine failed, or it was edited.

    The readable events are sent. The file is then kept under its name with `.damaged`, for people.

    Attributes:
        path: The file.
        lost: Number of events that cannot be read; they are lost.
    """

    def __init__(self, path: Path, lost: int, where: str) -> None:
        super().__init__(
            f"{path} is {where}: {lost} of its events cannot be read and are lost; the others are sent, and the file "
            "is then kept as .damaged. Check the disk: sessionary spool verify"
        )
        self.path = path
        self.lost = lost


class SpoolRemoved(ProducerError):
    """Spool files were removed or replaced while this client used them; `on_error` gets it.

    They held this client's events, or those of dead processes that it sends. Events that Kafka has
    not acknowledged are written into new files, unless another client sends them. If no file can be
    made, they are in memory, and the client tries again every second.

    Attributes:
        path: The folder of this client's own files.
        kept: Number of events that were written into new files.
        at_risk: Number of events that are in memory only, and are lost if the process is killed.
    """

    def __init__(self, path: Path, files: int, kept: int, at_risk: int, failure: OSError | None) -> None:
        fate = f"{kept} events that Kafka has not acknowledged were written into new files"
        if failure is not None:
            fate += f", {at_risk} are in memory only, and lost with the process, as no file can be made: {failure}"
        super().__init__(
            f"{files} spool files that the client with the folder {path} used were removed or replaced: {fate}. Let "
            "SESSIONARY_SPOOL_DIR name a folder that no program cleans up, and that stays mounted"
        )
        self.path = path
        self.kept = kept
        self.at_risk = at_risk


class ArtifactMissing(ProducerError):
    """An artifact's body is not in its store: it was removed, or the store is another one.

    Attributes:
        uri: Where it should be.
    """

    _cause = "it was removed, or this is another store"

    def __init__(self, uri: str) -> None:
        super().__init__(f"there is no artifact at {uri}: {self._cause}")
        self.uri = uri


class ArtifactDeleted(ArtifactMissing):
    """An artifact has expired and is marked as deleted: its body will be removed within a week."""

    _cause = "it has expired, and is marked as deleted; to keep it, save it again"


class ArtifactDamaged(ProducerError):
    """An artifact's body is not the one that was saved: its hash is another one.

    Attributes:
        uri: Where it is.
    """

    def __init__(self, uri: str) -> None:
        super().__init__(f"the artifact at {uri} was changed: its content does not have its hash")
        self.uri = uri


class ModelSlow(ProducerError):
    """A call of a model took longer than the session's `model_ms`: for `on_error`.

    No verb raises it: the answer is kept, and the session continues.

    Attributes:
        session_id: The session.
        model: The model.
        took_ms: The call's duration, in ms.
        limit_ms: The session's `model_ms`.
    """

    def __init__(self, session_id: str, model: str, took_ms: int, limit_ms: int) -> None:
        super().__init__(
            f"session {session_id}: model {model} took {took_ms / 1000:g} s, longer than model_ms "
            f"({limit_ms / 1000:g} s); its answer is kept"
        )
        self.session_id = session_id
        self.model = model
        self.took_ms = took_ms
        self.limit_ms = limit_ms


class ModelTimeout(ProducerError, TimeoutError):
    """A call of a model took longer than `model_call_limit_s`, or a step longer than its limit.

    Only this call failed: the session continues, and a retry may succeed.

    Attributes:
        limit_ms: The limit, in ms.
    """

    retryable = True

    def __init__(self, what: str, limit_ms: int) -> None:
        super().__init__(f"{what} took longer than its limit of {limit_ms / 1000:g}s")
        self.limit_ms = limit_ms


class VerdictPending(ProducerError):
    """The verdict on an earlier verb is still awaited. Call that verb again to keep waiting.

    Attributes:
        verb: `resume` or `recover`; `attach` for a take-over.
    """

    def __init__(self, verb: str) -> None:
        super().__init__(f"the verdict on {verb}() is still awaited; call {verb}() again before any other verb")
        self.verb = verb


class ClientClosed(ProducerError):
    """The client was closed, or the session belongs to the parent of this forked process."""


__all__ = [
    "ArtifactDamaged",
    "ArtifactDeleted",
    "ArtifactMissing",
    "AuthenticationFailed",
    "BoundReached",
    "ClientClosed",
    "DeliveryFailed",
    "EncodeError",
    "EventRejected",
    "HostLost",
    "Invalid",
    "ModelSlow",
    "ModelTimeout",
    "NotAllowed",
    "ProducerConflict",
    "ProducerError",
    "QueueFull",
    "Rejected",
    "RunGone",
    "SessionEnded",
    "SessionFenced",
    "SessionHeld",
    "SessionLost",
    "SessionTimeout",
    "SessionaryError",
    "SettingsError",
    "SpoolDamaged",
    "SpoolRemoved",
    "SpoolUnusable",
    "StateMismatch",
    "Unavailable",
    "UnreadableRequest",
    "VerdictPending",
]
