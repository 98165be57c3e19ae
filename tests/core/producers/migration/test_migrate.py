"""A session moves between clients in memory: what both sides see, and what becomes of it."""

from typing import Any, NamedTuple

import pytest

from sessionary.producers import (
    CleanupRequest,
    Invalid,
    MigrationAborted,
    MigrationResult,
    MigrationView,
    NotAllowed,
    ProducerError,
    ProducerSettings,
    Rejected,
    Session,
    SessionClient,
    SessionEnded,
    SessionFenced,
    SessionView,
)
from sessionary.producers.durable.flow import run_flow
from sessionary.producers.ports import Receipt
from sessionary.producers.session.migration import Migration
from sessionary.schemas.events import SessionMigrationAborted, SessionMigrationAccepted, SessionMigrationLoaded
from tests.core.producers.judged_memory import JudgedMemory
from tests.core.producers.migration.stage import Stage


def test_a_session_moves_with_its_state_and_the_target_works_on() -> None:
    stage = Stage()
    stage.take()
    session = stage.session(data_classes=["personal"])
    session.update_state({"cart": ["ü", 2]})
    done = session.migration.move(to="shipping", reason="rebalanced")
    assert done == MigrationResult(done.migration_id, "billing", "shipping", 2)
    (arrived,) = stage.arrived
    assert (arrived.state, arrived.version, arrived.epoch) == ({"cart": ["ü", 2]}, 2, 2)
    assert stage.types(session) == [f"session_migration_{step}" for step in ("offered", "loaded", "accepted")]
    assert arrived.update_state({"cart": []}) == 3
    last = stage.memory.events(session.session_id)[-1]
    assert (last.envelope.service_id, last.envelope.user_id, last.envelope.data_classes) == (
        "shipping",
        "u",
        ("personal",),
    )
    assert (stage.memory.rejections(), stage.reported) == ([], [])


def test_the_target_beats_for_the_session_and_the_source_does_not() -> None:
    stage = Stage()
    stage.take()
    session = stage.session()
    session.migration.move(to="shipping")
    before = len(stage.memory.heartbeats())
    stage.memory.advance(300)
    assert stage.memory.view_session(session).state == "Active"
    beats = stage.memory.heartbeats()[before:]
    assert {(beat.envelope.service_id, beat.envelope.epoch) for beat in beats} == {("shipping", 2)}
    assert len(beats) >= 29


def test_the_source_has_left_and_no_poll_reports_it() -> None:
    stage = Stage()
    stage.take()
    with stage.session() as session:
        session.migration.move(to="shipping")
        assert session.lost
        for verb in (lambda: session.activity("x"), session.pause, session.close, session.sync):
            with pytest.raises(SessionFenced) as raised:
                verb()
            assert (raised.value.holder, raised.value.epoch) == (stage.target.producer_id, 2)
    sent = len(stage.memory.events())
    stage.memory.advance(60)
    assert (stage.reported, len(stage.memory.events())) == ([], sent)


def test_the_source_is_asked_to_clean_up_and_says_nothing_of_the_session_but_that() -> None:
    stage = Stage()
    stage.take()
    asked: list[CleanupRequest] = []
    stage.source.on_cleanup(asked.append)
    session = stage.session()
    session.migration.move(to="shipping")
    stage.memory.advance(0)
    assert [(each.reason_code, each.service_id, each.epoch) for each in asked] == [("migrated", "billing", 1)]
    assert stage.types(session)[3:] == ["resources_released"]
    assert stage.memory.rejections() == []
    assert stage.memory.view_session(session).state == "Active"


def test_a_session_comes_back_to_the_client_that_it_left() -> None:
    stage = Stage()
    stage.take()
    back: list[Session] = []
    stage.source.accept_migrations(back.append)
    stage.source.on_cleanup(lambda _: None)
    stage.session().migration.move(to="shipping")
    stage.memory.advance(1)
    assert stage.arrived[0].migration.move(to="billing").epoch == 3
    assert back[0].update_state({"n": 1}) == 2
    assert (stage.memory.rejections(), stage.reported) == ([], [])


@pytest.mark.parametrize("ttl_s", [1.0, 60.0])
def test_a_silent_target_aborts_it_and_the_session_goes_on(ttl_s: float) -> None:
    stage = Stage()
    session = stage.session()
    with pytest.raises(MigrationAborted, match="did not migrate to shipping: target_silent") as raised:
        session.migration.move(to="shipping", ttl_s=ttl_s)
    assert (raised.value.reason_code, raised.value.target_service) == ("target_silent", "shipping")
    assert session.update_state({"n": 1}) == 2
    stage.memory.advance(100)
    view = session.sync()
    assert view.migration is not None
    assert (view.state, view.epoch, view.migration.step, session.local_state) == ("Active", 1, "aborted", "Active")
    assert stage.reported == []


class Deaf(Stage):
    """The target loads what is offered, and never accepts it."""

    def take(self) -> None:
        port = self.target.core.ports.migrations
        assert port is not None

        def load(request: Any, on_receipt: Any) -> None:
            if request.step == "offered":
                session = self.target.core.open_attached(request.session_id, None, may_beat=False)
                Migration(session).report_loaded(request.migration_id)

        port.start(load)


def test_a_session_that_was_held_goes_on_beating_and_working() -> None:
    stage = Deaf()
    stage.take()
    session = stage.session()
    with pytest.raises(MigrationAborted) as raised:
        session.migration.move(to="shipping", ttl_s=30)
    assert raised.value.reason_code == "expired"
    stage.memory.advance(100)
    assert session.sync().state == "Active"
    session.activity("on")
    assert stage.memory.rejections() == []


def test_a_session_that_is_read_while_it_is_held_is_active_again_if_that_ends() -> None:
    stage = Deaf()
    stage.take()
    session = stage.session()
    other = stage.source.attach(session.session_id)
    other.emit(_offer("m1"))
    stage.memory.advance(0)
    view = session.sync()
    assert (view.state, view.is_held, session.local_state) == ("Paused", True, "Active")
    stage.memory.advance(60)
    assert stage.memory.view_session(session).state == "Active"
    assert stage.memory.heartbeats()[-1].envelope.producer_id == stage.source.producer_id
    session.activity("on")
    assert stage.memory.rejections() == []


def test_what_is_sent_while_it_is_held_is_rejected_and_reported() -> None:
    stage = Deaf()
    stage.take()
    session = stage.session()
    session.emit(_offer("m1"))
    stage.memory.advance(0)
    session.activity("too late")
    stage.memory.advance(1)
    assert [f"{error}".rpartition(": ")[2] for error in stage.reported] == ["illegal_transition"]


def _offer(migration_id: str) -> Any:
    from sessionary.schemas.events import SessionMigrationOffered

    return SessionMigrationOffered(migration_id, "shipping", 30_000)


def test_a_paused_session_moves_and_stays_paused() -> None:
    stage = Stage()
    stage.take()
    session = stage.session()
    session.pause("for a review", "review")
    session.migration.move(to="shipping")
    (arrived,) = stage.arrived
    assert arrived.local_state == "Paused"
    arrived.resume()
    arrived.activity("on")
    assert (stage.memory.rejections(), stage.reported) == ([], [])


def test_a_timed_out_session_moves_and_is_active_there() -> None:
    stage = Stage()
    stage.take()
    session = stage.session()
    stage.memory.silence(session)
    stage.memory.advance(61)
    assert session.local_state == "Timeout"
    stage.memory.silence(session, silent=False)
    session.migration.move(to="shipping")
    (arrived,) = stage.arrived
    stage.memory.advance(100)
    assert (arrived.local_state, stage.memory.view_session(arrived).state) == ("Active", "Active")


def test_what_the_processor_rejects_is_raised_and_reported_once() -> None:
    stage = Stage()
    session = stage.session()
    session.emit(_offer("m1"))
    with pytest.raises(Rejected) as raised:
        session.migration.move(to="shipping")
    assert raised.value.reason == "migration_open"
    assert stage.reported == []


def test_what_cannot_be_offered_sends_nothing() -> None:
    stage = Stage()
    session = stage.session()
    sent = len(stage.memory.events())
    for fields in ({"to": "billing"}, {"to": "no name"}, {"to": "a", "ttl_s": 0.9}, {"to": "a", "ttl_s": 86_401}):
        with pytest.raises(Invalid):
            session.migration.move(**fields)
    idle = stage.source.create(user_id="u")
    assert len(stage.memory.events()) == sent + 1
    session.close()
    with pytest.raises(SessionEnded):
        session.migration.move(to="shipping")
    idle.lifecycle.fail_start("invalid_config")
    with pytest.raises((SessionEnded, NotAllowed)):
        idle.migration.move(to="shipping")


def test_a_client_that_is_turned_off_finds_no_target() -> None:
    settings = ProducerSettings.from_env({}, disabled=True)
    with SessionClient(tenant_id="acme", service_id="billing", agent_id="a", settings=settings) as client:
        client.accept_migrations(lambda session: None)
        session = client.session(user_id="u")
        with pytest.raises(MigrationAborted):
            session.migration.move(to="shipping")
        session.activity("on")


def test_the_end_of_a_session_ends_its_migration() -> None:
    stage = Stage()
    session = stage.session()
    session.sync()
    offered = Migration(session.core).offer("shipping", 60.0, None, {})
    session.complete()
    flow = Migration(session.core).follow(offered)
    with pytest.raises(MigrationAborted) as raised:
        flow.send(next(flow).work())  # type: ignore[union-attr]
    assert raised.value.reason_code == "session_ended"


def test_claim_is_a_take_over_by_its_plain_name() -> None:
    stage = Stage()
    session = stage.session()
    claimed = stage.client("billing").claim(session.session_id, user_id="v")
    assert (claimed.epoch, claimed.state) == (2, {"cart": ["ü"]})
    with pytest.raises(Rejected) as raised:
        stage.target.claim(session.session_id)
    assert raised.value.reason == "owner_alive"


def test_a_client_takes_migrations_once_and_each_tenant_its_own() -> None:
    stage = Stage()
    stage.take()
    with pytest.raises(ProducerError, match="call accept_migrations once"):
        stage.take()
    with pytest.raises(Invalid):
        stage.source.accept_migrations(lambda session: None, concurrency=0)
    globex: list[Session] = []
    stage.target.for_tenant("globex").accept_migrations(globex.append)
    stage.source.for_tenant("globex").session(user_id="u").migration.move(to="shipping")
    stage.session().migration.move(to="shipping")
    assert [each.core.emitter.key.tenant_id for each in (*globex, *stage.arrived)] == ["globex", "acme"]


def test_a_closed_client_takes_no_migration() -> None:
    stage = Stage()
    stage.take()
    stage.target.close()
    with pytest.raises(MigrationAborted):
        stage.session().migration.move(to="shipping", ttl_s=2)
    assert stage.arrived == []


def test_steps_of_a_stranger_are_rejected_and_raise_nothing_at_once() -> None:
    stage = Stage()
    session = stage.session()
    session.emit(_offer("m1"))
    stranger = stage.client("stranger").attach(session.session_id)
    stranger.emit(SessionMigrationLoaded("m1"))
    stranger.emit(SessionMigrationAccepted("stranger", "m1", 1, "0" * 64))
    assert [judged.reason for judged in stage.memory.rejections()] == ["not_owner", "not_owner"]


class Placeless:
    """An offer whose position in the log the broker did not tell."""

    def __init__(self, session: Session) -> None:
        self._fetch = session.core.services.control.fetch_session
        self.looks = 0

    def fetch_session(self, session_id: str, after: object, timeout_s: float) -> SessionView:
        """Tell the session as it was before the offer, the first times."""
        self.looks += 1
        view = self._fetch(session_id, None, timeout_s)
        return view._replace(migration=OTHER, epoch=1, owner_service="billing") if self.looks < 4 else view


OTHER = MigrationView("m0", "elsewhere", "aborted", "expired")


def test_an_earlier_migration_is_not_taken_for_one_that_is_not_judged_yet() -> None:
    stage = Stage()
    stage.take()
    session = stage.session()
    session.sync()
    late = Placeless(session)
    session.core.services = session.core.services._replace(control=_Control(late.fetch_session))
    offered = Migration(session.core).offer("shipping", 60.0, None, {})
    offered.sent.on_receipt(Receipt(0, None))
    done = run_flow(Migration(session.core).follow(offered), stage.memory.pause)
    assert (done.epoch, late.looks >= 4) == (2, True)


class _Control(NamedTuple):
    fetch_session: Any

    def check_configured(self) -> None:
        """Do nothing."""


def test_the_control_api_tells_the_last_migration() -> None:
    session = JudgedMemory().client()[0].session(user_id="u")
    assert session.sync().migration is None
    session.emit(_offer("m1"))
    assert session.sync().migration == MigrationView("m1", "shipping", "offered", None, "Active")
    session.emit(SessionMigrationAborted("no room", "m1"))
    assert session.sync().migration == MigrationView("m1", "shipping", "aborted", "called_off", "Active")
