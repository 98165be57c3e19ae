"""The machine of quotas in a partition: its log, its deadlines, and what it rejects."""

import pytest

from sessionary.schemas.codec import encode_record
from sessionary.schemas.ids import quota_key
from sessionary.schemas.records import Position, QuotaNotice, TenantQuota
from sessionary.schemas.rules import NEWEST_RULES
from sessionary.schemas.types import QuotaStep
from sessionary.stream_processors.core.model import BatchResult, LogRecord
from sessionary.stream_processors.core.partition import PartitionState
from sessionary.stream_processors.core.quota.judge import LOOK_MS, QuotaJudge
from sessionary.stream_processors.core.quota.limits import TenantLimits
from tests.core.oracle_rig import DECODER, SETTINGS
from tests.support.event_factory import TICK

KEY = quota_key("acme", "concurrent_runs")
START_MS = 1_790_000_000_000


class ClaimsRig:
    """A partition of the topic of quotas."""

    def __init__(self, limits: TenantLimits) -> None:
        self.limits = limits
        self.state = PartitionState(0, SETTINGS, DECODER, QuotaJudge(lambda _: self.limits))
        self.state.load_position(Position(0, 0, 0, 0, 0, rules=NEWEST_RULES))
        self.state.finish_loading()
        self.at, self.offset = START_MS, 0

    def append(self, key: bytes | None, value: bytes | None) -> BatchResult:
        batch = self.state.begin()
        assert batch.apply(LogRecord(self.offset, self.at, key, value))
        self.offset += 1
        outcome = batch.finish()
        self.state.merge(batch)
        return outcome

    def tell(self, step: QuotaStep, run_id: str) -> BatchResult:
        return self.append(KEY, encode_record(QuotaNotice("concurrent_runs", step, "acme", "s1", run_id, 1)))

    def claims(self) -> dict[str, str]:
        row = self.state.rows.get(KEY)
        return {claim.run_id: claim.state for claim in row.claims} if isinstance(row, TenantQuota) else {}


def test_a_raised_limit_is_found_while_a_claim_waits() -> None:
    rig = ClaimsRig(TenantLimits(1))
    rig.tell("requested", "a")
    assert rig.state.next_deadline_ms is not None
    assert rig.state.next_deadline_ms > START_MS + 10**12  # nothing waits, so the limit does not matter
    rig.tell("requested", "b")
    assert rig.state.next_deadline_ms == START_MS + LOOK_MS
    rig.limits = TenantLimits(2)
    rig.at += LOOK_MS - 1
    rig.append(None, TICK)
    assert rig.claims() == {"a": "granted", "b": "waiting"}
    rig.at += 1
    rig.append(None, TICK)
    assert rig.claims() == {"a": "granted", "b": "granted"}


def test_a_row_goes_with_its_last_claim() -> None:
    rig = ClaimsRig(TenantLimits(1))
    rig.tell("requested", "a")
    outcome = rig.tell("released", "a")
    assert dict(outcome.rows) == {KEY: None}
    assert rig.state.rows == {}
    assert rig.state.live == 0
    assert rig.state.next_deadline_ms is None


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        (KEY, b"junk", "undecodable"),
        (KEY, None, "undecodable"),
        (KEY, TICK, "unknown_event_type"),
        (None, b"junk", "undecodable"),
        (
            b"other/concurrent_runs",
            encode_record(QuotaNotice("concurrent_runs", "requested", "acme", "s", "r", 1)),
            "bad_key",
        ),
        (
            b"/concurrent_runs",
            encode_record(QuotaNotice("concurrent_runs", "requested", "", "s", "r", 1)),
            "invalid_value",
        ),
    ],
)
def test_what_is_no_notice_is_rejected_and_changes_nothing(key: bytes | None, value: bytes | None, reason: str) -> None:
    rig = ClaimsRig(TenantLimits(1))
    outcome = rig.append(key, value)
    assert (list(outcome.rejections), dict(outcome.rows)) == ([reason], {})
