"""A detached run that is queued asks for its work; the oracle expects the same requests."""

from sessionary.schemas.records import TaskRequest
from sessionary.schemas.types import Limits
from tests.auditor.oracle import find_differences
from tests.core.fold_rig import FoldRig
from tests.core.oracle_rig import OracleRig
from tests.core.stream_processors.core.run.run_rig import RunRig
from tests.support.event_factory import EventFactory

QUEUED = {"mode": "detached", "task_type": "model_training", "input_json": '{"epochs":3}'}


def requests_of(rig: FoldRig) -> list[tuple[bytes | None, TaskRequest]]:
    assert rig.outcome is not None
    return list(rig.outcome.records_on("tasks"))


def test_a_queued_detached_run_asks_for_its_work() -> None:
    rig = RunRig()
    assert rig.say("run_queued", **QUEUED) == "applied"
    ((key, request),) = requests_of(rig)
    assert key == rig.agent.key.encoded()
    assert request == TaskRequest(
        tenant_id=rig.agent.key.tenant_id,
        session_id=rig.agent.key.session_id,
        run_id="r1",
        service_id=rig.row_of(rig.agent).owner_service,
        user_id="u1",
        epoch=1,
        task_type="model_training",
        input_json='{"epochs":3}',
        data_classes=rig.row_of(rig.agent).data_classes,
        requested_at=rig.at * 1_000,
    )
    assert rig.say("run_queued", **QUEUED) != "applied"
    assert requests_of(rig) == []


def test_no_other_run_asks() -> None:
    rig = RunRig()
    assert rig.say("run_queued", "attached", **{**QUEUED, "mode": "attached"}) == "applied"
    assert requests_of(rig) == []
    started = {"mode": "detached", "task_type": "sum", "input_json": None, "plan_json": None}
    assert rig.say("run_started", "started", **started) == "applied"
    assert requests_of(rig) == []


def test_the_oracle_expects_each_request_once() -> None:
    rig, agent = OracleRig(), EventFactory("agent")
    rig.start(agent, limits=Limits())
    for run_id in ("r1", "r2"):
        assert rig.send(agent, "run_queued", {"run_id": run_id}, **QUEUED) == "applied"
    line = rig.outcomes[-1].records_on("tasks")[0][1]._asdict()
    for wrong in ([], [line, line], [{**line, "task_type": "other"}], [{**line, "run_id": "r1"}]):
        assert find_differences(rig.all_partitions, [], [], None, wrong) != find_differences(
            rig.all_partitions, [], [], None, [line]
        )
