"""Moves a session: the source offers it and waits, the target accepts it."""

from functools import partial
from typing import NamedTuple

from sessionary.producers.context.scope import EventMetadata, envelope_fields
from sessionary.producers.delivery.emitter import NO_FIELDS
from sessionary.producers.durable.flow import Do, Flow, Send, Wait
from sessionary.producers.errors import Invalid, ProducerError, Rejected, Unavailable
from sessionary.producers.run_ports import SessionView
from sessionary.producers.session.core import SessionCore
from sessionary.producers.session.pending_verdict import PendingVerdict, wait_acknowledged
from sessionary.producers.session.verdicts import Verdicts
from sessionary.schemas.events import SessionMigrationAccepted, SessionMigrationLoaded, SessionMigrationOffered
from sessionary.schemas.ids import checked_name, content_hash, new_session_id
from sessionary.schemas.limits import MIGRATION_TTL_MS_DEFAULT, MIGRATION_TTL_MS_MAX, MIGRATION_TTL_MS_MIN

# The error of a session that does not migrate.
#
# SessionaryError
# └── ProducerError
#     └── MigrationAborted(reason_code)    a migration of the session was not completed
#
# The bases, and the client's other errors, are in `sessionary.producers.errors`.


class MigrationAborted(ProducerError):
    """A migration was not completed: the session stays with its service, and continues there.

    Attributes:
        session_id: The session.
        migration_id: The migration.
        target_service: The service that was to own the session.
        reason_code: `target_silent` if the target did not load the session in time, `expired` if it
            did not accept it in time, `called_off`, `declined` by the target, `state_differs` if
            the target had another state three times, `taken_over` or `session_ended`; `UNKNOWN`.
    """

    def __init__(self, session_id: str, migration_id: str, target_service: str, reason_code: str) -> None:
        super().__init__(f"session {session_id} did not migrate to {target_service}: {reason_code}")
        self.session_id = session_id
        self.migration_id = migration_id
        self.target_service = target_service
        self.reason_code = reason_code


TTL_S_DEFAULT = MIGRATION_TTL_MS_DEFAULT / 1_000
_TTL_S_MIN, _TTL_S_MAX = MIGRATION_TTL_MS_MIN / 1_000, MIGRATION_TTL_MS_MAX / 1_000
_MARGIN_S = 10.0  # until a migration whose time is over is reported as aborted
_LOOK_S, _LOOK_S_MAX = 0.05, 0.5


class MigrationResult(NamedTuple):
    """A migration that was completed."""

    migration_id: str
    from_service: str
    to_service: str
    epoch: int  # of the session at its new owner


class OfferedMigration(NamedTuple):
    """A migration that was offered here, with the state of the session at that time."""

    migration_id: str
    target_service: str
    ttl_s: float
    sent: PendingVerdict
    epoch: int
    departures: int


class Migration:
    """The migrations of one session: the steps of source and target. Thread-safe."""

    __slots__ = ("_core", "_verdicts")

    def __init__(self, core: SessionCore) -> None:
        self._core = core
        self._verdicts = Verdicts(core)

    # The source

    def move(self, to: str, ttl_s: float, reason: str | None, metadata: EventMetadata) -> Flow[MigrationResult]:
        """Move the session to another service, and wait until it is there."""
        offered: OfferedMigration = yield Send(partial(self.offer, to, ttl_s, reason, metadata))
        return (yield from self.follow(offered))

    def offer(self, to: str, ttl_s: float, reason: str | None, metadata: EventMetadata) -> OfferedMigration:
        """Offer the session. Raises as `Session.migration.move` does before it waits."""
        core, view = self._core, self._core.view
        target = checked_name("target service", to)
        if target == core.emitter.service_id:
            raise Invalid("invalid_value", f"to is {target!r}, the service of this client")
        if not _TTL_S_MIN <= ttl_s <= _TTL_S_MAX:
            raise Invalid("invalid_value", f"ttl_s is {ttl_s}; use {_TTL_S_MIN:g} to {_TTL_S_MAX:g} seconds")
        core.services.control.check_configured()
        migration_id = new_session_id()
        payload = SessionMigrationOffered(migration_id, target, round(ttl_s * 1_000), reason)
        with core.lock:
            sent = core.send_awaited(payload, envelope_fields(metadata))
            return OfferedMigration(migration_id, target, ttl_s, sent, core.emitter.epoch, view.departures)

    def follow(self, offered: OfferedMigration) -> Flow[MigrationResult]:
        """Wait for the verdict on an offer, and then for the migration's end.

        Meanwhile polls report nothing: the session's departure is expected.
        """
        core, known = self._core, self._core.view
        with core.lock:
            known.offered = known.offered or offered.migration_id
        try:
            view = yield Do(partial(self._await_offer, offered))
            waits, pause_s = core.waits, _LOOK_S
            deadline_s = waits.now_s() + offered.ttl_s + _MARGIN_S
            # Counted too: a fake clock may stand still.
            for _ in range(round((offered.ttl_s + _MARGIN_S) / _LOOK_S)):
                if (result := self._end_migration(offered, view)) is not None:
                    return result
                if waits.now_s() >= deadline_s:
                    break
                yield Wait(pause_s)
                pause_s = min(1.5 * pause_s, _LOOK_S_MAX)
                try:
                    view = yield Do(core.fetch_view)
                except Unavailable:
                    continue  # the processor continues, and may report it later
            raise Unavailable(f"how migration {offered.migration_id} ended is not known; sync() shows it later", 1.0)
        finally:
            with core.lock:
                if known.offered == offered.migration_id:
                    known.offered = None

    def _await_offer(self, offered: OfferedMigration) -> SessionView:
        """Return the session once the offer is judged. Raises `Rejected`, `MigrationAborted`."""
        sent = offered.sent
        wait_acknowledged(sent, "the offer of the session", self._core.services.verdict_timeout_s)
        log_position = sent.wait_position(0.0)
        view = self._core.fetch_view(log_position)
        if view.verdict is None and log_position is not None:  # the client is turned off: nothing is judged
            raise self._abort_error(offered, "target_silent")
        if view.verdict is not None and view.verdict.kept and not view.verdict.applied:
            reason = view.verdict.reason or "UNKNOWN"
            self._core.notify_rejected(sent.event_id, sent.event_type, reason)
            raise Rejected(sent.event_type, reason)
        return view

    def _end_migration(self, offered: OfferedMigration, view: SessionView) -> MigrationResult | None:
        """Return the result if the migration is completed, None while it is open.

        Raises `MigrationAborted`, or `SessionFenced` if the session was taken over.
        """
        last, is_ours = view.migration, False
        if last is not None:
            is_ours = last.migration_id == offered.migration_id
        if last is None or (is_ours and last.is_open):
            return None
        has_left = view.epoch > offered.epoch and view.owner_service != self._core.emitter.service_id
        if not is_ours and not has_left:
            return None  # the offer's log_position is unknown, and it is not judged yet
        if last.step == "completed" if is_ours else view.owner_service == offered.target_service:
            self._leave_migrated(offered, view)
            names = self._core.emitter.service_id, offered.target_service
            return MigrationResult(offered.migration_id, *names, view.epoch)
        with self._core.lock_then_notify():
            if self._core.view.departures == offered.departures:
                self._core.adopt_view(view)
        raise self._abort_error(offered, (is_ours and last.reason_code) or "UNKNOWN")

    def _abort_error(self, offered: OfferedMigration, reason_code: str) -> MigrationAborted:
        return MigrationAborted(self._core.session_id, offered.migration_id, offered.target_service, reason_code)

    def _leave_migrated(self, offered: OfferedMigration, view: SessionView) -> None:
        """Leave a session that another service owns now; report events rejected in the meantime."""
        core, known = self._core, self._core.view
        with core.lock_then_notify():
            if known.sent_events is not None:
                for rejected in known.sent_events.match_rejections(view.rejections):
                    core.note_finding(rejected, raised=False)
            core.fence(view.holder or offered.target_service, view.epoch, view.owner_service)
            known.departures += 1
            core.lose()

    # The target

    def report_loaded(self, migration_id: str) -> SessionView:
        """Report that the session is loaded; return it once the report is judged."""
        with self._core.lock:
            sent = self._core.send_awaited(SessionMigrationLoaded(migration_id), NO_FIELDS)
            self._core.keep_rejection(sent.event_id, "UNKNOWN")  # the caller looks again
        wait_acknowledged(sent, "the loading of the session", self._core.services.verdict_timeout_s)
        return self._core.fetch_view(sent.wait_position(0.0))

    def accept(self, migration_id: str, view: SessionView) -> None:
        """Accept the session with the state of `view`, and wait for the verdict.

        Raises as `Session.resume` does.
        """
        digest = content_hash(view.state_json)
        accepted = SessionMigrationAccepted(self._core.emitter.service_id, migration_id, view.version, digest)
        pending = self._verdicts.ask("accept", [accepted])
        self._core.keep_rejection(pending.event_id, "UNKNOWN")  # the caller looks again
        self._verdicts.wait(pending)
        self.hold(pending.producer_id)

    def hold(self, producer_id: str | None) -> None:
        """Hold the session, and beat for it if it is Active: this process accepted it.

        `producer_id`: the one with which it did.
        """
        view = self._core.view
        with self._core.lock:
            view.held_as, view.detached = producer_id, False
            self._core.set_state(view.local_state, committed=True)
