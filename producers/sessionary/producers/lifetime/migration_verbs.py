"""The client's verbs by which it gets sessions of others: migrations, and claims."""

from typing import Unpack

from sessionary.producers.context.marks import Marks
from sessionary.producers.errors import Invalid, ProducerError
from sessionary.producers.lifetime.bound_client import ProcessBoundClient
from sessionary.producers.migration.acceptor import CONCURRENCY, MigrationAcceptor
from sessionary.producers.migration.hand_over import HandOver, OnMigrated, hand_over_in_place
from sessionary.producers.session.core import SessionCore
from sessionary.producers.session.heartbeat import BeatsWith, IsAlive
from sessionary.producers.session.session import Session


class MigrationVerbs(ProcessBoundClient):
    """Taking sessions that migrate to this service, or whose holder is gone."""

    _acceptor: MigrationAcceptor | None = None

    def accept_migrations(self, function: OnMigrated, *, concurrency: int = CONCURRENCY) -> None:
        """Take the sessions that migrate to this client's service. Call once per client.

        Each session is loaded while its owner still works, and accepted once the processor holds it
        and this process has read the same state. Then `function(session)` is called, on a thread of
        the pool: the session is this service's, in the state it had, and beats. The program keeps
        it: heartbeats stop once nothing refers to it.

            client.accept_migrations(sessions_at_work.put)

        A process that dies before it accepted a session is followed by the next one, or by another
        process of the service. What died afterwards is not asked for again: `claim` the session. A
        request that is delivered again, or whose migration is over, is dropped quietly.

        Args:
            function: Takes the `Session`. What it raises goes to `on_error`.
            concurrency: How many sessions are taken at once, from the first request until
                `function` returns; others wait until then, or until their time is over: first those
                that are held, then the others as they were offered. At most half of the sessions
                that are taken are only being loaded; those that are held have the other half.

        Raises:
            ProducerError: The client takes migrations already, or its ports serve none.
            Invalid: `concurrency` is no whole number from 1 on.
            SettingsError: `SESSIONARY_CONTROL_URL` is not set.
            ClientClosed: The client is closed.
        """
        self._take_migrations(hand_over_in_place(function, self._on_error), concurrency)

    def claim(
        self,
        session_id: str,
        *,
        user_id: str | None = None,
        beats_with: BeatsWith = "process",
        **marks: Unpack[Marks],
    ) -> Session:
        """Take a session over from the process that holds it: `attach(take_over=True)`.

        A service may claim its own sessions at any time, another one's once that was silent for two
        heartbeats. The former holder is fenced off: what it still sends is refused, and it learns
        so within a heartbeat interval (`on_fenced`), if it has a control API. Unlike a migration,
        it is not asked, and the session is not held meanwhile.

        Args:
            session_id: The session's UUID.
            user_id: The user in the envelope of further events.
            beats_with: What the session's heartbeats end with, as in `attach`.
            marks: Of the take-over, as in `Marks`.

        Returns:
            The session, in the state in which the processor has it. Raises as `attach` does.
        """
        return self.attach(session_id, user_id=user_id, take_over=True, beats_with=beats_with, **marks)

    def attach(
        self,
        session_id: str,
        *,
        user_id: str | None = None,
        take_over: bool = False,
        beats_with: BeatsWith = "process",
        **marks: Unpack[Marks],
    ) -> Session:
        """Continue a session that exists."""
        raise NotImplementedError

    def _open_attached(
        self, session_id: str, user_id: str | None, is_alive: IsAlive | None = None, *, may_beat: bool
    ) -> SessionCore:
        raise NotImplementedError

    def _take_migrations(self, hand_over: HandOver, concurrency: int) -> None:
        self._reopen_in_child()
        if type(concurrency) is not int or concurrency < 1:
            raise Invalid("invalid_value", f"concurrency is {concurrency!r}; use a whole number from 1 on")
        if self._migrations_taken is not None and not self._is_parents:
            raise ProducerError("this client already takes migrations; call accept_migrations once")
        if self._ports.migrations is None:
            raise ProducerError("the ports of this client serve no migrations")
        self._ports.control.check_configured()
        taken = hand_over, concurrency
        self._start_migrations(taken)
        self._migrations_taken = taken

    def _start_migrations(self, taken: tuple[HandOver, int]) -> None:
        if self._is_parents or not self._gate.open:
            raise self._closed_error()
        requests = self._ports.migrations
        assert requests is not None
        self._acceptor = MigrationAcceptor(self, *taken, self._on_error, in_place=requests.works_in_place)
        requests.start(self._acceptor)

    def _start_handlers(self) -> None:
        super()._start_handlers()
        if self._migrations_taken is not None:
            self._start_migrations(self._migrations_taken)

    def _begin_stop(self) -> None:
        if self._acceptor is not None:
            self._try_step(self._acceptor.stop)
        super()._begin_stop()

    def _stop_work(self, deadline: float) -> None:
        if self._acceptor is not None:
            acceptor = self._acceptor
            self._try_step(lambda: acceptor.close(self._left_s(deadline)))
        super()._stop_work(deadline)


__all__ = ["MigrationVerbs"]
