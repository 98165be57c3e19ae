"""Random agents, verdicts and time by rules with quotas; the oracle judges the same."""

from collections import Counter
from collections.abc import Callable
from random import Random

from sessionary.schemas.codec import encode_record
from sessionary.schemas.ids import run_key
from sessionary.schemas.records import QuotaVerdict, RunState
from sessionary.schemas.rules import NEWEST_RULES
from tests.core.oracle_rig import FIRST_POSITION
from tests.core.random_agents import RandomAgents
from tests.core.run_moves import RUN_IDS
from tests.core.stream_processors.core.test_partition import all_outputs, check_consistency, fold_again

RUNS, STEPS = 6, 600
POSITION = FIRST_POSITION._replace(rules=NEWEST_RULES._replace(quotas=True))


class QuotaAgents(RandomAgents):
    """Random agents whose runs get verdicts: right ones, late ones, and such as nobody asked for."""

    def weighted_actions(self) -> list[tuple[int, Callable[[], None]]]:
        return [*super().weighted_actions(), (80, self.send_verdict), (150, self.send_run_event)]

    def send_verdict(self) -> None:
        agent, run_id, rng = self.pick_agent(), self.rng.choice(RUN_IDS), self.rng
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
                steps.setdefault((notice.session_id, notice.run_id, notice.offset), []).append(notice.step)
            seen.update(f"run {one.from_run_state} {one.to_run_state}" for _, one in outcome.records_on("audit"))
            seen.update(one.reason for _, one in outcome.records_on("rejected"))
        # Each claim is requested once, and taken and released once at most, in this order.
        kinds = Counter(" ".join(told) for told in steps.values())
        assert kinds.keys() <= {
            *("requested", "requested taken", "requested released", "requested taken released"),
        }
        seen.update(kinds)
    expected = {
        *("run None queued", "run queued started", "run queued queued", "run queued running", "run queued rejected"),
        *("run failed queued", "requested released", "requested taken released"),
        "quota_exceeded",
    }
    assert expected - seen.keys() == set()
