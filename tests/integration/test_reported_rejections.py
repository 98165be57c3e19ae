"""An agent is reported what the processor decides, through a real broker and a processor."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sessionary.producers import (
    AuthenticationFailed,
    EventRejected,
    ProducerSettings,
    SessionClient,
    SessionFenced,
    SessionLost,
    SessionTimeout,
)
from sessionary.producers.client_core import sessions
from sessionary.schemas.settings import KafkaSettings
from tests.integration.pipeline_rig import TENANT, PipelineRig, brief_limits
from tests.support.processes import Processes
from tests.support.waiting import wait_until

OLD_ID = "00000001-0000-7000-8000-000000000000"  # made in 1970, by its own time


def client_of(settings: ProducerSettings, tenant_id: str = TENANT, **callbacks: Callable[[Any], None]) -> SessionClient:
    return SessionClient(
        tenant_id=tenant_id,
        service_id="billing",
        agent_id="agent-1",
        settings=settings,
        **callbacks,  # type: ignore[arg-type]
    )


def test_rejections_time_outs_take_overs_and_a_foreign_token_reach_the_callbacks(
    kafka: KafkaSettings, processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = PipelineRig(kafka, None, processes)
    pipeline.start_processor()
    first, second, third = (
        pipeline.client_settings(tmp_path, name).model_copy(update={"poll_interval_s": 0.5})
        for name in ("first", "second", "third")
    )
    rejected: list[EventRejected] = []
    timed_out: list[SessionTimeout] = []
    fenced: list[SessionFenced] = []
    errors: list[Exception] = []
    with (
        client_of(
            first,
            on_error=errors.append,
            on_rejected=rejected.append,
            on_timed_out=timed_out.append,
            on_fenced=fenced.append,
        ) as client,
        client_of(second) as other,
    ):
        monkeypatch.setattr(sessions, "new_session_id", lambda _now_ms: OLD_ID)
        never = client.create(user_id="u")
        monkeypatch.undo()
        wait_until(lambda: never.lost, 60, "the rejected creation to be reported")
        assert [(reported.event_type, reported.reason) for reported in rejected] == [("session_created", "too_old")]
        # Of a control API that is slow to answer, it is reported too.
        assert sum(isinstance(error, SessionLost) for error in errors) == 1

        silent = client.session(user_id="u", limits=brief_limits(9_000, grace_ms=600_000))
        silent.lifecycle.detach()  # no heartbeat
        wait_until(lambda: bool(timed_out), 60, "the time-out to be reported")
        assert [(reported.session_id, reported.reason_code) for reported in timed_out] == [
            (silent.session_id, "inactive")
        ]
        assert (silent.local_state, silent.lost) == ("Timeout", False)
        silent.resume()
        silent.close()

        taken = client.session(user_id="u")
        taken.sync()
        other.attach(taken.session_id, take_over=True)
        wait_until(lambda: bool(fenced), 60, "the take-over to be reported")
        assert [(reported.session_id, reported.holder) for reported in fenced] == [
            (taken.session_id, other.producer_id)
        ]
        assert taken.lost
        assert client.counters.rejected == 1
    foreign: list[Exception] = []
    with client_of(third, "globex", on_error=foreign.append):
        wait_until(lambda: any(isinstance(error, AuthenticationFailed) for error in foreign), 60, "the foreign token")
    (error,) = (error for error in foreign if isinstance(error, AuthenticationFailed))
    assert f"the token is for {TENANT}, the client says globex" in f"{error}"
