"""Random agents, verdicts and time by rules with quotas of sessions; the oracle judges the same."""

from collections import Counter
from collections.abc import Callable
from itertools import groupby
from random import Random

from sessionary.schemas.codec import encode_record
from sessionary.schemas.records import QuotaVerdict
from sessionary.schemas.rules import NEWEST_RULES
from tests.core.oracle_rig import FIRST_POSITION
from tests.core.random_agents import RandomAgents
from tests.core.stream_processors.core.test_partition import all_outputs, check_consistency, fold_again

SEEDS, STEPS = 6, 500
POSITION = FIRST_POSITION._replace(rules=NEWEST_RULES._replace(session_quotas=True, token_quotas=True))


class WaitingAgents(RandomAgents):
    """Random agents whose sessions get verdicts: right ones, late ones and idle ones."""

    def weighted_actions(self) -> list[tuple[int, Callable[[], None]]]:
        return [*super().weighted_actions(), (25, self.send_verdict), (20, self.start_session)]

    def send_verdict(self) -> None:
        rng, agent = self.rng, self.pick_agent()
        row = self.row_of(agent)
        asked = row.quota.offset if row is not None and row.quota is not None else rng.randrange(1_000)
        offset = asked if rng.random() < 0.9 else rng.randrange(1 + self.rig.next_offset)
        verdict = QuotaVerdict("live_sessions", "", offset, rng.random() < 0.75, rng.randrange(5), "q1")
        for _ in range(rng.choice((1, 1, 2))):
            self.rig.append(agent.key.encoded(), encode_record(verdict))


def test_both_judges_agree_on_sessions_with_quotas() -> None:
    seen: Counter[str] = Counter()
    for seed in range(SEEDS):
        crowd = WaitingAgents(Random(seed), POSITION)
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
                name = notice.tenant_id, notice.session_id, notice.offset
                steps.setdefault(name, []).append(notice.step)
            audits = [line for _, line in outcome.records_on("audit")]
            seen.update(f"{line.transition} {line.reason_code}" for line in audits if line.transition in ("T02", "T03"))
            seen.update(line.reason for _, line in outcome.records_on("rejected"))
        # Requested, taken, released, in this order. A repeated verdict is answered again, as is one
        # on no claim.
        kinds = Counter(" ".join(step for step, _ in groupby(reported)) for reported in steps.values())
        assert kinds.keys() <= {
            *("requested", "requested taken", "requested released", "requested taken released", "released"),
        }
        seen.update(kinds)
    expected = {
        *("requested released", "requested taken released", "T02 started", "used"),
        *("T03 quota_exceeded", "T03 inactive", "T03 init_timeout", "quota_exceeded"),
    }
    assert expected - seen.keys() == set()
