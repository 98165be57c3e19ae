"""Answers clean-up requests: runs the user's handler and sends `resources_released`.

Each request is answered once per process, by its `cleanup_id`. After a crash it may be handled
again, so a handler must accept a second call for one id. The processor counts one confirmation.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from itertools import islice
from typing import NamedTuple

from sessionary.producers.delivery.emitter import Emitter
from sessionary.producers.errors import HostLost, Invalid, QueueFull, SessionaryError, SessionLost, SettingsError
from sessionary.producers.ports import Control, OnError, OnReceipt, Receipt
from sessionary.producers.process.safe_text import error_text
from sessionary.schemas.events import ResourcesReleased, SessionPhaseChanged
from sessionary.schemas.ids import SessionKey
from sessionary.schemas.limits import NAME_CHARACTERS_MAX
from sessionary.schemas.records import CleanupRequest
from sessionary.schemas.types import CleanupAction, DataClass

# Finds the data classes of sessions that other clients created.


_TIMEOUT_S = 2.0
_PAUSE_S = 10.0  # until a control API that failed is asked again: clean-ups must not wait for it


class DataClassLookup:
    """Asks the control API. One thread calls it."""

    def __init__(self, control: Control, on_error: OnError) -> None:
        self._control = control
        self._on_error = on_error
        self._failed_s: float | None = None

    def find_classes(self, session_id: str) -> tuple[DataClass, ...]:
        """Return a session's data classes; none if they cannot be found. Blocks for up to 2 s.

        For 10 s after a failure the control API is not asked.
        """
        if self._failed_s is not None and time.monotonic() - self._failed_s < _PAUSE_S:
            return ()
        try:
            view = self._control.fetch_session(session_id, None, _TIMEOUT_S)
        except (SettingsError, SessionLost):
            return ()  # there is no control API, or the session is archived
        except SessionaryError as error:
            self._failed_s = time.monotonic()
            self._on_error(error)
            return ()
        return tuple(view.data_classes)


CleanupHandler = Callable[[CleanupRequest], Iterable[CleanupAction] | None]
"""Releases what a session held; returns what was done, or None if all of `request.actions` were.

Raises `HostLost` if it is gone with its machine.
"""
ANSWERED_MAX = 10_000
_DETAIL_LENGTH_MAX = 1_000
# Reasons of requests for sessions that continue: they can resume, or work at another service.
_GOES_ON = frozenset({"inactive", "idle", "max_duration", "migrated"})


def _now_us() -> int:
    return time.time_ns() // 1000


def _check_action(action: object) -> None:
    """Raise `TypeError` for a value that cannot be written into the answer."""
    match action:
        case CleanupAction(action=str(name), done=bool(), at=int(), detail=None | str()):
            if len(name) <= NAME_CHARACTERS_MAX:
                return
    raise TypeError(f"a clean-up handler returns CleanupAction(action, done, at, detail), not {action!r}")


class HandlerAnswer(NamedTuple):
    """What a handler did: one action per requested action, in that order, then any others."""

    actions: list[CleanupAction]
    host_lost: bool


def run_handler(request: CleanupRequest, handler: CleanupHandler, now_us: Callable[[], int] = _now_us) -> HandlerAnswer:
    """Run `handler` and return its answer.

    If the handler raises, the first action without a report has failed, and those after it were
    not reached.
    """
    done: dict[str, CleanupAction] = {}
    fault: str | None = None
    host_lost = False
    reported = True
    try:
        answer = handler(request)
        reported = answer is not None
        # Limited, as a handler may yield without end.
        for action in islice(answer or (), 4 * (len(request.actions) + 1)):
            _check_action(action)
            done[action.action] = action._replace(detail=action.detail and action.detail[:_DETAIL_LENGTH_MAX])
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - it is an answer, also SystemExit and CancelledError: it failed
        fault, reported = error_text(error)[:_DETAIL_LENGTH_MAX], True
        host_lost = isinstance(error, HostLost)
    result: list[CleanupAction] = []
    for name in request.actions:
        if name in done:
            result.append(done.pop(name))
        elif not reported:
            result.append(CleanupAction(name, done=True, at=now_us()))
        else:
            result.append(CleanupAction(name, done=False, at=now_us(), detail=fault or "not reported"))
            fault = fault and "not reached"
    return HandlerAnswer(result + list(done.values()), host_lost)


def _failed_answer(request: CleanupRequest, error: Invalid) -> ResourcesReleased:
    detail = f"the handler's answer cannot be sent: {error}"[:_DETAIL_LENGTH_MAX]
    actions = [CleanupAction(name, done=False, at=_now_us(), detail=detail) for name in request.actions]
    return ResourcesReleased(request.cleanup_id, actions, None, host_lost=False)


class CleanupResponder:
    """`OnCleanupRequest` by a handler. Called by one thread; receipts may come on another."""

    def __init__(
        self, handler: CleanupHandler, emitter_at: Callable[[SessionKey, int], Emitter], on_error: OnError
    ) -> None:
        """`emitter_at(key, epoch)` sends for a session, in this client's sequence of it."""
        self._handler = handler
        self._emitter_at = emitter_at
        self._on_error = on_error
        self._answered: OrderedDict[str, ResourcesReleased | None] = OrderedDict()
        self._lock = threading.Lock()
        self._awaited: dict[str, list[OnReceipt]] = {}  # of the answers that are on their way

    def __call__(self, request: CleanupRequest, on_receipt: OnReceipt) -> None:
        """Run the handler and send the answer. Raises `QueueFull` (policy `block`), `ClientClosed`.

        After an error call again: the handler does not run a second time.
        """
        with self._lock:
            if (awaited := self._awaited.get(request.cleanup_id)) is not None:
                awaited.append(on_receipt)  # delivered again after a rebalance: one answer is for all
                return
        known = request.cleanup_id in self._answered
        answer = self._answered.get(request.cleanup_id)
        if known and answer is None:  # already delivered
            on_receipt(Receipt(None, None))
            return
        if answer is None:
            actions, host_lost = run_handler(request, self._handler)
            is_freed = not host_lost and all(action.done for action in actions)
            released = request.context_bytes if is_freed else None
            answer = ResourcesReleased(request.cleanup_id, actions, released, host_lost)
            self._remember_answer(request.cleanup_id, answer)
        sent = answer

        def on_answer_receipt(receipt: Receipt) -> None:
            with self._lock:
                awaited = self._awaited.pop(request.cleanup_id, [])
                if receipt.error is not None:  # lost on the way: the next call sends it again
                    self._answered[request.cleanup_id] = sent
            for each in awaited:
                each(receipt)

        emitter = self._emitter_at(SessionKey(request.tenant_id, request.session_id), request.epoch)
        self._remember_answer(request.cleanup_id, None)
        self._awaited[request.cleanup_id] = [on_receipt]
        try:
            try:
                emitter.emit(answer, on_receipt=on_answer_receipt)
            except Invalid as error:  # a value that no event can carry: the answer is that it failed
                sent = _failed_answer(request, error)
                emitter.emit(sent, on_receipt=on_answer_receipt)
        except Exception:  # whatever it is, such as a closed client, nothing was sent
            self._remember_answer(request.cleanup_id, sent)
            self._awaited.pop(request.cleanup_id, None)
            raise
        if request.reason_code not in _GOES_ON:
            if sent.host_lost or all(action.done for action in sent.actions):
                emitter.context_bytes = 0
            self._send_clearing(emitter)
            emitter.forget_sequence()  # an ended session says nothing after it

    def _send_clearing(self, emitter: Emitter) -> None:
        """Report that the ended session clears its context, after its resources were released."""
        try:
            emitter.emit(SessionPhaseChanged("clearing"))
        except QueueFull as error:  # the answer is sent; its phase is not worth a retry
            self._on_error(error)

    def _remember_answer(self, cleanup_id: str, unsent: ResourcesReleased | None) -> None:
        self._answered[cleanup_id] = unsent
        if len(self._answered) > ANSWERED_MAX:
            self._answered.popitem(last=False)
