"""The snapshots of one session that says more than its state in them, and the cache of their bases.

Loaded only where snapshots are taken, by `Session.snapshot` or around tool calls.
"""

from collections import deque
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from threading import Lock
from typing import Any, Final, NamedTuple, Protocol

from sessionary.producers.delivery.emitter import EnvelopeFields
from sessionary.producers.errors import Invalid, SessionaryError
from sessionary.producers.ports import SessionView
from sessionary.producers.process.safe_text import replace_in_value, replace_surrogates
from sessionary.schemas.events import Payload, SnapshotCreated
from sessionary.schemas.ids import content_hash, snapshot_hash
from sessionary.schemas.limits import CONVERSATION_TURNS_MAX, NUMBER_MAX
from sessionary.schemas.snapshots import WHOLE_EVERY, content_size, stored_snapshot
from sessionary.schemas.types import (
    AccessedResource,
    Rejection,
    RejectionReason,
    Snapshot,
    SnapshotMessage,
    ToolExecution,
)

_RESOURCES_MAX: Final = 256
_SENT_MAX: Final = 16  # as many rejections as a session's row keeps
# What people give in a snapshot by hand: each field, its type, and whether it may be None.
_FIELDS: Final[dict[type, tuple[tuple[str, type, bool], ...]]] = {
    SnapshotMessage: (("role", str, False), ("content_hash", str, False), ("tokens", int, True)),
    AccessedResource: (("uri", str, False), ("accessed_at", int, False), ("operation", str, False)),
    ToolExecution: (
        ("tool_call_id", str, False),
        ("tool_name", str, False),
        ("parameters_json", str, False),
        ("status", str, True),
        ("data_json", str, True),
        ("execution_time_ms", int, True),
    ),
}
# After these a snapshot is taken again under a new id: it came at the wrong time, or was damaged.
_TAKEN_AGAIN: Final[frozenset[RejectionReason]] = frozenset(
    {"snapshot_exists", "broken_chain", "hash_mismatch", "late", "illegal_transition"}
)


class SnapshotOwner(Protocol):
    """The core of a session, whose modules use this one: it imports none of them.

    `view` is its `SessionKnown`, `services` its `SharedServices`.
    """

    services: Any
    view: Any

    @property
    def session_id(self) -> str:
        """The session's UUID."""
        ...

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """Guards the view."""
        ...

    def send_event(self, payload: Payload, fields: EnvelopeFields) -> str:
        """Send an event of the session; return its id. Raises as `Session.emit` does."""
        ...


class SnapshotCache:
    """The last whole snapshot of each session of a client, against which the next delta is made.

    Thread-safe. When it holds more than its limit, the older half goes. Nothing is lost: each was
    sent, and a session without one sends a whole snapshot next.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._lock = Lock()
        self._bases: dict[str, tuple[Snapshot, int]] = {}  # oldest first
        self.bytes_held = 0

    def __len__(self) -> int:
        return len(self._bases)

    def keep(self, session_id: str, whole: Snapshot) -> None:
        """Keep a session's last snapshot, in place of the one before."""
        size = whole.content_bytes
        with self._lock:
            self._drop(session_id)
            self._bases[session_id] = whole, size
            self.bytes_held += size
            if self.bytes_held > self._bytes_max:
                for oldest in list(self._bases)[: (len(self._bases) + 1) // 2]:
                    self._drop(oldest)

    def find(self, session_id: str, snapshot_id: str | None) -> Snapshot | None:
        """Return a session's last snapshot, if it is that one and is held."""
        found = self._bases.get(session_id)
        return found[0] if found is not None and found[0].snapshot_id == snapshot_id else None

    def forget(self, session_id: str) -> None:
        """Forget a session that has ended."""
        with self._lock:
            self._drop(session_id)

    def _drop(self, session_id: str) -> None:
        if (found := self._bases.pop(session_id, None)) is not None:
            self.bytes_held -= found[1]


class _Sent(NamedTuple):
    """A snapshot that was sent as an event of its own, with its whole content."""

    event_id: str
    whole: Snapshot
    fields: EnvelopeFields
    is_again: bool


class SnapshotChain:
    """The chain of one session, as far as this process knows it. Hold the session's lock.

    Attributes:
        messages: The messages in the model's context, oldest first.
        open_call: Id of the tool call before which the head was taken; None for any other head.
        unjudged: The last ones that may be rejected yet, and are taken again then. Polls tell which
            are judged.
    """

    def __init__(self, core: SnapshotOwner, messages: Sequence[SnapshotMessage], tool: ToolExecution | None) -> None:
        self._core = core
        self.messages = deque(messages, maxlen=CONVERSATION_TURNS_MAX)
        self.open_call = _open_call(tool)
        self.unjudged: list[_Sent] = []
        self._resources: deque[AccessedResource] = deque(maxlen=_RESOURCES_MAX)
        self._deltas = 0  # since the last whole one
        self._refused: list[_Sent] = []
        # By polls, and not acted on yet: rejections, and the head after them, if it is known.
        self._heard: deque[tuple[Sequence[Rejection], str | None]] = deque(maxlen=_SENT_MAX)

    def note_message(self, role: str, text: str, tokens: int | None) -> None:
        """Note that a message was appended to the conversation."""
        try:
            text_hash = content_hash(text)
        except UnicodeEncodeError:
            text_hash = content_hash(replace_surrogates(text))  # as the event has it
        self.messages.append(SnapshotMessage(role, text_hash, tokens))

    def note_access(self, uri: str, operation: str, accessed_us: int) -> None:
        """Note that a resource was accessed; the next snapshot has it."""
        self._resources.append(AccessedResource(uri, accessed_us, operation))

    def next_snapshot(self) -> Snapshot:
        """Return a snapshot of the content as an event has it, after the head."""
        return self._stored(self._next_whole())[1]

    def _next_whole(
        self,
        *,
        context: str | None = None,
        messages: Sequence[SnapshotMessage] | None = None,
        total_tokens: int | None = None,
        tool: ToolExecution | None = None,
        resources: Sequence[AccessedResource] = (),
    ) -> Snapshot:
        """Return a whole snapshot, without its hash."""
        view = self._core.view
        if messages is not None:
            self.messages = deque(messages, maxlen=max(CONVERSATION_TURNS_MAX, len(messages)))
        counts = [message.tokens for message in self.messages]
        if total_tokens is None and counts and None not in counts:
            total_tokens = sum(count for count in counts if count is not None)
            if total_tokens > NUMBER_MAX:
                total_tokens = None
        whole = Snapshot(
            next(view.snapshot_ids),
            view.snapshot_id,
            view.schema_version,
            view.state_json,
            context,
            "",
            "full",
            "none",
            view.session_id,
            self._core.services.calls.turn_of(view.session_id) or None,
            tuple(self.messages),
            total_tokens,
            tool,
            (*self._resources, *resources),
            self._core.services.versions,
        )
        self._resources.clear()
        return whole

    def take(
        self,
        fields: EnvelopeFields,
        *,
        context: str | None = None,
        messages: Sequence[SnapshotMessage] | None = None,
        total_tokens: int | None = None,
        tool: ToolExecution | None = None,
        resources: Sequence[AccessedResource] = (),
    ) -> str:
        """Send a snapshot of the content as an event of its own; return its id.

        Raises as `Session.emit` does: then the chain is as it was.
        """
        before = self.messages, self._resources.copy(), self.open_call, self._deltas
        try:
            whole = self._next_whole(
                context=context, messages=messages, total_tokens=total_tokens, tool=tool, resources=resources
            )
            return self._send(whole, fields)
        except BaseException:
            self.messages, self._resources, self.open_call, self._deltas = before
            raise

    def _stored(self, whole: Snapshot) -> tuple[Snapshot, Snapshot]:
        """Return a snapshot with its hash, and as an event has it: the base of the next delta."""
        try:
            whole = _with_hash(whole)
        except UnicodeEncodeError:  # a lone surrogate: the hash is of the text that an event can hold
            whole = _with_hash(replace_in_value(whole))
        self.open_call = _open_call(whole.tool)
        session_id, cache = self._core.session_id, self._find_cache()
        if cache is None:
            return whole, whole
        base = cache.find(session_id, whole.parent_snapshot_id)
        stored = stored_snapshot(whole, base if self._deltas < WHOLE_EVERY - 1 else None)
        self._deltas = self._deltas + 1 if stored.encoding == "delta" else 0
        cache.keep(session_id, whole)
        return whole, stored

    def _find_cache(self) -> SnapshotCache | None:
        find = self._core.services.snapshot_cache
        return None if find is None else find()

    def _send(self, whole: Snapshot, fields: EnvelopeFields, *, is_again: bool = False) -> str:
        """Send a whole snapshot as an event of its own; return its id.

        Raises as `Session.emit` does.
        """
        whole, stored = self._stored(whole)
        event_id = self._core.send_event(SnapshotCreated(stored), fields)
        self._core.view.snapshot_id = stored.snapshot_id
        self._core.view.changes += 1
        self.unjudged = [*self.unjudged, _Sent(event_id, whole, fields, is_again)][-_SENT_MAX:]
        return stored.snapshot_id

    def hear_rejections(self, rejections: Sequence[Rejection], head: str | None) -> None:
        """Take the rejections that a poll reports, and the head's id then. Needs no lock."""
        self._heard.append((rejections, head))

    def forget_judged(self, event_ids: Collection[str]) -> None:
        """Forget the snapshots that are judged, unless some are still to be taken again."""
        if self._heard:
            return
        judged = [place for place, sent in enumerate(self.unjudged, 1) if sent.event_id in event_ids]
        del self.unjudged[: max(judged, default=0)]  # those before were judged before

    def _learn_rejections(self, rejections: Sequence[Rejection], head: str | None) -> None:
        """Note which snapshots the processor has rejected: those after them follow no head.

        The next one follows `head`, which may be another process's; None: the last one before them.
        """
        reasons = {rejection.event_id: rejection.reason for rejection in rejections}
        place = next((place for place, sent in enumerate(self.unjudged) if sent.event_id in reasons), None)
        if place is None:
            return
        gone, self.unjudged = self.unjudged[place:], self.unjudged[:place]
        view = self._core.view
        if "snapshot_exists" in reasons.values():
            view.renew_snapshot_ids()
        if view.snapshot_id in {sent.whole.snapshot_id for sent in gone}:
            view.snapshot_id = head or gone[0].whole.parent_snapshot_id
        self._refused += [
            sent for sent in gone if not sent.is_again and reasons.get(sent.event_id, "broken_chain") in _TAKEN_AGAIN
        ]
        self._deltas = 0

    def adopt_head(self, view: SessionView) -> None:
        """Adopt the head as the processor has it."""
        self._learn_rejections(view.rejections, view.snapshot_id)
        if not self._refused:
            self.open_call = _open_call(view.head_tool)

    def forget_base(self) -> None:
        """Forget the last snapshot: the session has ended."""
        if (cache := self._find_cache()) is not None:
            cache.forget(self._core.session_id)

    def take_again(self) -> None:
        """Take the snapshots again that were rejected for their place in the log, in their order.

        Raises as `Session.emit` does; the rest is taken later.
        """
        view = self._core.view
        if self._heard:
            # One by one: a poll may add some meanwhile.
            heard = [self._heard.popleft() for _ in range(len(self._heard))]
            rejections = [rejection for reported, _ in heard for rejection in reported]
            self._learn_rejections(rejections, heard[-1][1])
        while self._refused:
            whole, fields = self._refused[0].whole, self._refused[0].fields
            again = whole._replace(snapshot_id=next(view.snapshot_ids), parent_snapshot_id=view.snapshot_id)
            self._send(again, fields, is_again=True)
            del self._refused[0]


def _with_hash(whole: Snapshot) -> Snapshot:
    """Return a whole snapshot with size and hash. Raises `UnicodeEncodeError`."""
    whole = whole._replace(content_bytes=content_size(whole))
    return whole._replace(content_hash=snapshot_hash(whole))


def _open_call(tool: ToolExecution | None) -> str | None:
    return tool.tool_call_id if tool is not None and tool.status is None else None


def open_chain(core: SnapshotOwner) -> SnapshotChain:
    """Return the session's chain; it begins now if it has none. Hold the session's lock."""
    view = core.view
    if view.chain is None:
        view.chain = SnapshotChain(core, view.head_messages, view.head_tool)
    chain: SnapshotChain = view.chain
    return chain


def check_given(context: object, tool_call: object, messages: object, total_tokens: object, resources: object) -> None:
    """Raise `Invalid`, with field and value, for what is not of its type in a snapshot by hand."""
    _check_value("context", context, str, may_be_none=True)
    _check_value("total_tokens", total_tokens, int, may_be_none=True)
    if tool_call is not None:
        _check_item("tool_call", tool_call, ToolExecution, "give a ToolExecution")
    for name, items, kind in (("messages", messages, SnapshotMessage), ("resources", resources, AccessedResource)):
        advice = f"give a list of {kind.__name__}"
        if not isinstance(items, Sequence):
            raise Invalid("invalid_value", f"{name} is {items!r:.80}: {advice}")
        for place, item in enumerate(items):
            _check_item(f"{name}[{place}]", item, kind, advice)


def _check_item(name: str, item: object, kind: type, advice: str) -> None:
    if not isinstance(item, kind):
        raise Invalid("invalid_value", f"{name} is {item!r:.80}: {advice}")
    for field, needed, may_be_none in _FIELDS[kind]:
        _check_value(f"{name}.{field}", getattr(item, field), needed, may_be_none=may_be_none)


def _check_value(name: str, value: object, needed: type, *, may_be_none: bool) -> None:
    if (value is None and may_be_none) or (isinstance(value, needed) and not isinstance(value, bool)):
        return
    kind = ("a text" if needed is str else "a whole number") + (" or None" if may_be_none else "")
    raise Invalid("invalid_value", f"{name} is {value!r:.80}: give {kind}")


def snapshot_call(core: SnapshotOwner, tool: ToolExecution, fields: EnvelopeFields) -> None:
    """Take the snapshot before or after a tool call, unless the head is that before this call.

    Raises nothing: an error goes to the client's `on_error`, and the call goes on.
    """
    try:
        with core.lock:
            chain = open_chain(core)
            chain.take_again()
            if tool.status is None and chain.open_call == tool.tool_call_id:
                return  # taken by a former attempt, or before a resume
            chain.take(fields, tool=tool)
    except SessionaryError as error:
        core.services.on_error(error)


def open_call(core: SnapshotOwner) -> str | None:
    """Return the id of the tool call before which the head was taken; None for any other head."""
    with core.lock:
        return _open_call(core.view.head_tool) if core.view.chain is None else core.view.chain.open_call
