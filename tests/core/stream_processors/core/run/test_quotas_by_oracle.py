"""Random agents, verdicts and time by rules with quotas; the oracle judges the same."""

from collections import Counter
from collections.abc import Callable
from itertools import groupby
from random import Random
from typing import Any

from sessionary.schemas.codec import encode_record
from sessionary.schemas.ids import run_key
from sessionary.schemas.records import QuotaVerdict, RunState
from sessionary.schemas.rules import NEWEST_RULES
from sessionary.schemas.types import ErrorInfo
from tests.core.oracle_rig import FIRST_POSITION
from tests.core.random_agents import RandomAgents
from tests.core.run_moves import RUN_IDS
from tests.core.stream_processors.core.test_partition import all_outputs, check_consistency, fold_again
from tests.support.event_factory import EventFactory

RUNS, STEPS = 5, 500
STORY: list[tuple[str, dict[str, Any]]] = [
    ("run_started", {"mode": "detached", "plan_json": None}),
    ("run_running", {"progress": None}),
    ("run_failed", {"error": ErrorInfo("retryable", "e", "e")}),
    ("run_resumed", {}),
]
POSITION = FIRST_POSITION._replace(rules=NEWEST_RULES._replace(quotas=True, token_quotas=True))


class QuotaAgents(RandomAgents):
    """Random agents whose runs get verdicts: right ones, late ones and idle ones."""

    def weighted_actions(self) -> list[tuple[int, Callable[[], None]]]:
        return [
            *super().weighted_actions(),
            (60, self.send_verdict),
            (40, self.send_run_event),
            (8, self.resume_failed),
        ]

    def resume_failed(self) -> None:
        """Let a run work, fail and be resumed, which chance alone rarely does."""
        agent = self.pick_active_agent()
        for event_type, fields in STORY:
            self.send(agent, event_type, fields, run_id="story")
            self.decide(agent, "story")

    def send_verdict(self) -> None:
        self.decide(self.pick_agent(), self.rng.choice(RUN_IDS))

    def decide(self, agent: EventFactory, run_id: str) -> None:
        rng = self.rng
        row = self.rig.fold.rows.get(run_key(*agent.key, run_id))
        asked = row.quota.offset if isinstance(row, RunState) and row.quota is not None else rng.randrange(1_000)
        offset = asked if rng.random() < 0.9 else rng.randrange(1 + self.rig.next_offset)
        granted, limit = rng.random() < 0.75, rng.randrange(5)
        verdict = QuotaVerdict("concurrent_runs", run_id, offset, granted, limit, "q1")
        for _ in range(rng.choice((1, 1, 2))):
            self.rig.append(agent.key.encoded(), encode_record(verdict))


def test_both_judges_agree_on_runs_with_quotas() -> None:
    seen: Counter[str] = Counter()
    for seed in range(RUNS):
        crowd = QuotaAgents(Random(seed), POSITION)
        for _ in range(STEPS):
            crowd.act_once()
        check_consistency(crowd.rig)
        assert fold_again(crowd.rig.log, Random(seed), POSITION) == all_outputs(crowd.rig)
        steps: dict[tuple[str, str, int], list[str]] = {}
        for outcome in crowd.rig.outcomes:
            for _, notice in outcome.records_on("quotas"):
                if notice.step == "used":
                    seen["used"] += 1
                    continue
                steps.setdefault((notice.session_id, notice.run_id, notice.offset), []).append(notice.step)
            seen.update(f"run {one.from_run_state} {one.to_run_state}" for _, one in outcome.records_on("audit"))
            seen.update(one.reason for _, one in outcome.records_on("rejected"))
        # Requested, taken, released, in this order. A repeated verdict is answered again, as is one
        # on no claim, or on one that is still to come.
        ways = (" ".join(step for step, _ in groupby(reported)) for reported in steps.values())
        kinds = Counter(way.removeprefix("released ") for way in ways)
        assert kinds.keys() <= {
            *("requested", "requested taken", "requested released", "requested taken released", "released"),
        }
        seen.update(kinds)
    expected = {
        *("run None queued", "run queued started", "run queued queued", "run queued running", "run queued rejected"),
        *("run failed queued", "requested released", "requested taken released"),
        *("quota_exceeded", "used"),
    }
    assert expected - seen.keys() == set()
