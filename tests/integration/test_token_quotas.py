"""Runs beyond their tenant's tokens, with a real broker, a processor and a worker of quotas."""

import json
from contextlib import ExitStack
from pathlib import Path

import pytest

from sessionary.producers import QuotaExceeded
from sessionary.schemas.codec import Decoder
from sessionary.schemas.records import AuditRecord, QuotaNotice, TenantQuota
from sessionary.schemas.rules import NEWEST_RULES
from sessionary.schemas.settings import KafkaSettings
from tests.integration.pipeline_rig import TENANT
from tests.integration.test_quotas import EnteringRun, QuotaRig, two_sessions
from tests.support.processes import Processes
from tests.support.reading import read_records, read_topic
from tests.support.waiting import wait_until

TOKENS = 100
RULES = NEWEST_RULES._replace(quotas=True, token_quotas=True)


def account(rig: QuotaRig) -> int:
    """Return the tokens that the table of quotas has counted in the present window."""
    rows = {stored.key: stored.value for stored in read_topic(rig.kafka, rig.kafka.topics.quotas_changelog)}
    found = [Decoder().decode_record(value) for value in rows.values() if value is not None]
    return sum(row.tokens for row in found if isinstance(row, TenantQuota))


def limit_tokens(rig: QuotaRig, over: str, window_s: int) -> None:
    limits = {"concurrent_runs": 5, "over": over, "tokens": TOKENS, "token_window_s": window_s}
    rig.limits.write_text(json.dumps({"tenants": {TENANT: limits}}))


def test_a_run_beyond_the_tokens_waits_through_kills_for_the_next_window(
    kafka: KafkaSettings, processes: Processes, tmp_path: Path
) -> None:
    """The window is a day until both workers were killed; then it is cut to a few seconds."""
    rig = QuotaRig(kafka, processes, tmp_path, "queue", rules=RULES)
    limit_tokens(rig, "queue", 86_400)
    with rig.client() as client, ExitStack() as last:
        first, second = two_sessions(client, kafka.partitions)
        first.usage(tokens_in=50, tokens_out=9)
        last.enter_context(first.run("report", mode="detached"))
        rig.restart_all()
        second.usage(tokens_in=40, tokens_out=1)
        wait_until(lambda: account(rig) == TOKENS, 120, "the tokens of both partitions to be counted")
        third = EnteringRun(second.run("report", mode="detached"))
        wait_until(lambda: rig.claims() == {"taken": 1, "waiting": 1}, 120, "the third run to wait")
        shown = ('token_accounts{state="used_up"} 1.0', 'token_accounts{state="within"} 0.0')
        wait_until(lambda: all(line in rig.metrics_page() for line in shown), 120, "the metrics to tell of them")
        rig.restart_all()
        assert (account(rig), rig.claims()) == (TOKENS, {"taken": 1, "waiting": 1})
        assert rig.state(second, third.run) == "queued"
        assert not third.is_over
        rig.quotas.kill()
        limit_tokens(rig, "queue", 3)
        rig.quotas = rig.start_quotas()
        wait_until(lambda: third.is_over, 120, "the third run to begin in the next window")
        assert third.error is None
        wait_until(lambda: account(rig) == 0, 120, "the former window to be forgotten")
        third.run.__exit__(None, None, None)
        last.close()
        wait_until(lambda: rig.claims() == {}, 120, "all slots to be free")
    notices = [one for one in read_records(kafka, kafka.topics.quotas) if isinstance(one, QuotaNotice)]
    reported = [(one.session_id, one.tokens) for one in notices if one.step == "used"]
    assert sorted(reported) == sorted([(first.session_id, 59), (second.session_id, 41)])


def test_a_run_beyond_the_tokens_is_rejected_and_its_record_says_why(
    kafka: KafkaSettings, processes: Processes, tmp_path: Path
) -> None:
    rig = QuotaRig(kafka, processes, tmp_path, "reject", rules=RULES)
    limit_tokens(rig, "reject", 86_400)
    with rig.client() as client:
        first, second = two_sessions(client, kafka.partitions)
        first.usage(tokens_in=TOKENS, tokens_out=0)
        wait_until(lambda: account(rig) == TOKENS, 120, "the tokens to be counted")
        with pytest.raises(QuotaExceeded, match="or of tokens"):
            second.run("report").__enter__()
    reported = [one for one in read_records(kafka, kafka.topics.audit) if isinstance(one, AuditRecord)]
    (rejected,) = (one for one in reported if one.to_run_state == "rejected")
    assert rejected.reason == f"Run rejected: tenant {TENANT} has used its {TOKENS} tokens of this window"
