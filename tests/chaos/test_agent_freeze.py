"""What is checked of frozen agents can fail, and each fault comes when it can."""

import time
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from sessionary.schemas.settings import ClickHouseSettings
from tests.auditor.decoding import LogEntry, Row, decode_record, numbered_events
from tests.auditor.evidence import OUTPUTS, Evidence
from tests.auditor.take_overs import Session, Trail, read_trails
from tests.chaos import __main__ as chaos
from tests.chaos.agent_freeze import Reported, find_agent_faults
from tests.chaos.claim_rows import find_row_differences, read_claim_rows
from tests.chaos.faults import Faults
from tests.chaos.recovery import FaultOutcome
from tests.chaos.schedule import (
    AFTER_EFFECT,
    BEFORE_EFFECT,
    QUOTAS,
    Fault,
    count_required,
    draw_faults,
    find_rare_kinds,
)
from tests.integration.test_migration_views import JudgedRows
from tests.support.event_factory import snapshot

KEY = "order-7"
CALL: Row = {"tool_call_id": "c", "tool_name": "order", "idem_key": KEY, "try_number": 1}
RIGHT = Reported(
    source={"fenced_by": "q", "failures": {}},
    target={"found": {"by": "source", "step": 1}, "left": {"by": "target", "step": 3}},
    orders=1,
    requests=1,
)


@pytest.mark.parametrize("frozen_at", [BEFORE_EFFECT, AFTER_EFFECT])
def test_agents_that_hand_over_in_order_have_no_fault(frozen_at: str) -> None:
    assert find_agent_faults(frozen_at, RIGHT) == []


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"orders": 2}, "2 orders were placed"),
        ({"orders": 0}, "0 orders were placed"),
        ({"source": {"failures": {}}}, "the source was not notified that it is fenced off"),
        ({"source": {"fenced_by": "q", "failures": {"sync": "none"}}}, "the source's sync raised no SessionFenced"),
        (
            {"source": {"fenced_by": "q", "failures": {"order": "Lost()", "update": "NotAllowed()"}}},
            "the source's update raised NotAllowed(), and no SessionFenced",
        ),
        (
            {"target": {**RIGHT.target, "left": {"by": "source", "step": 2}}},
            "the target left the content {'by': 'source', 'step': 2}",
        ),
        ({"target": {**RIGHT.target, "found": None}}, "the target found the content None"),
    ],
)
def test_what_agents_and_service_tell_can_be_wrong(wrong: dict[str, Any], text: str) -> None:
    assert find_agent_faults(BEFORE_EFFECT, RIGHT._replace(**wrong)) == [text]


def test_only_a_call_that_had_no_effect_may_be_made_again() -> None:
    again = RIGHT._replace(requests=2)
    assert find_agent_faults(BEFORE_EFFECT, again) == []
    assert find_agent_faults(AFTER_EFFECT, again) == ["an order that was placed was asked for 2 times"]


class ClaimedRows:
    """A claimed session in ClickHouse, and what the log says of it."""

    def __init__(self, clickhouse: ClickHouseSettings) -> None:
        judged = JudgedRows(clickhouse)
        source, target = judged.owner, judged.target
        assert judged.send(source, "state_updated") == "applied"
        assert judged.send(source, "tool_call_started", **CALL, side_effect=True, queryable=True) == "applied"
        assert judged.send(target, "session_taken_over", as_operator=True) == "applied"
        ended = {**CALL, "result_json": "{}", "artifact_id": None}
        assert judged.send(target, "tool_call_succeeded", **ended) == "applied"
        assert judged.send(target, "state_updated", base_version=2, new_version=3) == "applied"
        stale = {"base_version": 2, "new_version": 3}
        assert judged.send(source, "state_updated", {"epoch": 1}, **stale) == "rejected stale_epoch"
        assert judged.send(target, "snapshot_created", snapshot=snapshot("third")) == "applied"
        judged.insert()
        key, evidence = source.key, evidence_of(judged)
        self.claim = {"tenant_id": key.tenant_id, "session_id": key.session_id, "key": KEY}
        self.trails = read_trails(evidence, numbered_events(evidence.log))
        self.rows = read_claim_rows(judged.rows.fetch_rows, key.session_id)

    @property
    def trail(self) -> Trail:
        key: Session = self.claim["tenant_id"], self.claim["session_id"]
        return self.trails[key]

    def find_differences(self) -> list[str]:
        return list(find_row_differences(self.trails, self.claim, self.rows))


def evidence_of(judged: JudgedRows) -> Evidence:
    def entries(kind: str) -> list[LogEntry]:
        return [LogEntry(0, offset, at_us // 1_000, b"", value) for at_us, offset, value in judged.records[kind]]

    key = judged.owner.key.encoded()
    log = [entry._replace(key=key) for entry in entries("history")]
    outputs: dict[str, list[tuple[LogEntry, Row]]] = {name: [] for name in OUTPUTS}
    for kind in ("audit", "rejected"):
        outputs[kind] = [(entry, decode_record(entry.value)[1]) for entry in entries(kind)]
    return Evidence(1, log, outputs, {}, {}, [], {})


def test_what_clickhouse_has_of_a_claimed_session_is_compared(tables: ClickHouseSettings) -> None:
    claimed = ClaimedRows(tables)
    assert claimed.find_differences() == []
    trail = claimed.trail
    spoilers: dict[str, Callable[[], object]] = {
        "owners": lambda: trail.owners.update({3: {"third"}}),
        "fenced writers": lambda: trail.fenced.update({("billing", "stale_epoch"): 1}),
        "versions": lambda: trail.versions.append((3, 4, "billing")),
        "calls": lambda: claimed.claim.update(key="order-8"),
        "audit lines": lambda: trail.epochs.append(2),
        "take-overs": lambda: claimed.rows["owners"][1].update(how="resumed"),
    }
    for what, spoil in spoilers.items():
        before = claimed.find_differences()
        spoil()
        found = [text for text in claimed.find_differences() if text not in before]
        assert any(f"ClickHouse has the {what} " in text for text in found), (what, found)


class RecordedFaults(Faults):
    """Carries out nothing; notes which faults begin, and whether runs asked for quotas."""

    def __init__(self, quotas_after_s: float) -> None:
        nothing = cast("Any", None)
        self.began: list[tuple[str, bool]] = []
        self._quotas_s = time.monotonic() + quotas_after_s
        super().__init__(nothing, nothing, nothing, lambda _: None, nothing, self._are_due, nothing)

    def _are_due(self) -> bool:
        return time.monotonic() >= self._quotas_s

    def _apply_fault(self, fault: Fault) -> FaultOutcome:
        self.began.append((fault.kind, self._are_due()))
        return FaultOutcome(fault, 0.0)


def carry_out(faults: RecordedFaults, schedule: Sequence[Fault], until_s: float = 60.0) -> None:
    faults.carry_out(list(schedule), time.time() + until_s)
    faults.wait()


FREEZE = Fault(0.0, "freeze agent", BEFORE_EFFECT)
KILL_QUOTAS = Fault(0.0, "kill quotas", QUOTAS)
KILL = Fault(0.0, "kill sink", "sink-audit")


def test_the_role_quotas_is_killed_once_runs_ask_for_quotas() -> None:
    faults = RecordedFaults(0.3)
    carry_out(faults, [KILL_QUOTAS, KILL, KILL_QUOTAS])
    assert faults.began[0][0] == "kill sink"
    assert faults.began[1:] == [("kill quotas", True)] * 2
    later = RecordedFaults(0.0)
    carry_out(later, [KILL_QUOTAS, KILL])
    assert later.began[0] == ("kill quotas", True)


def test_without_quotas_their_role_is_not_killed_and_agents_are_frozen() -> None:
    faults = RecordedFaults(3_600.0)
    carry_out(faults, [KILL_QUOTAS, FREEZE], until_s=0.5)
    assert (faults.began, faults.left_out) == ([("freeze agent", False)], [KILL_QUOTAS])


def test_agents_are_frozen_before_and_after_the_effect_in_turn() -> None:
    drawn = draw_faults(1, 60, ["freeze agent"])
    assert [fault.target for fault in drawn[:3]] == [BEFORE_EFFECT, AFTER_EFFECT, BEFORE_EFFECT]


def test_a_run_of_chosen_kinds_has_three_of_each() -> None:
    assert [count_required(minutes, ["freeze agent"]) for minutes in (0.5, 1, 20)] == [3, 3, 6]
    happened: list[Any] = ["freeze agent"] * 2
    (text,) = find_rare_kinds(happened, ["freeze agent"], 1, ["freeze agent"])
    assert text == "freeze agent happened 2 times in 1 minutes, must be 3"


def test_an_unknown_kind_is_one_line_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        chaos.main(["--only", "freeze agent", "--only", "freeze agents"])
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("there is no fault of the kind 'freeze agents'; the kinds are kill processor, ")
    assert "freeze agent, " in line
