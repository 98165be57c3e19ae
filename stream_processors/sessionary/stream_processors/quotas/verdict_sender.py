"""Verdicts on claims: records that are appended to the events of the claims' sessions.

They are sent from committed rows, outside of transactions, and again until the session acknowledges
them: so no verdict is lost if a worker is killed. A repeated verdict changes nothing. Each is
signed: without that, a client could admit its own sessions.

Each hour the verdicts on all slots that are held are sent again, each at the second of the hour
that follows from its claim: so neither restarts nor the number of slots keep one from its turn. A
session answers such a verdict with `taken` or `released`, also if there is no session any more. So
a slot whose release was lost is free within the hour.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from sessionary.schemas.codec import encode_record
from sessionary.schemas.codec.from_settings import decoder_for
from sessionary.schemas.ids import SessionKey
from sessionary.schemas.kafka.clients import discard_producer
from sessionary.schemas.records import QuotaVerdict, TenantQuota
from sessionary.schemas.rules import rules_to_write
from sessionary.schemas.telemetry.role_logs import error_fields, role_logger
from sessionary.schemas.types import QuotaClaim, QuotaName
from sessionary.stream_processors.core.committed import PartitionSettings
from sessionary.stream_processors.core.model import BatchResult
from sessionary.stream_processors.core.partition import PartitionState
from sessionary.stream_processors.core.quota.claims import UNHEARD, verdict_on
from sessionary.stream_processors.core.quota.judge import QuotaJudge
from sessionary.stream_processors.metrics import MetricName, ReadGauge
from sessionary.stream_processors.process import run_processor
from sessionary.stream_processors.quotas.settings import LimitsFile, QuotaSettings
from sessionary.stream_processors.runtime.job import Job, Transaction, changelog_records, partition_settings
from sessionary.stream_processors.runtime.ticker import RENEW_MS
from sessionary.stream_processors.store.packed_rows import FamilyCodec, StoredLookup, nothing_stored

_log = role_logger(__name__)
REPEAT_MS: Final = 1_000  # then twice as long each time
REPEAT_MS_MAX: Final = 60_000  # a session's partition may be halted for long
CHECK_MS: Final = 3_600_000  # a tenant with as many slots as a row has: one and a half verdicts a second
_TURNS: Final = CHECK_MS // REPEAT_MS  # one a second, in which some of the held slots are asked about
_STATES: Final = ("waiting", "granted", "taken", "rejected")


class PendingVerdict(NamedTuple):
    """A verdict that its session has not acknowledged."""

    tenant_id: str
    claim: QuotaClaim
    verdict: QuotaVerdict

    @property
    def key(self) -> bytes:
        """The key of the session, to whose partition the verdict goes."""
        return SessionKey(self.tenant_id, self.claim.session_id).encoded()


class _Sent(NamedTuple):
    """When a verdict is sent again (ms since the epoch), and the pause after that."""

    again_ms: float
    pause_ms: float


def pending_verdicts(row: TenantQuota, instance: str) -> Iterator[PendingVerdict]:
    """Yield the verdicts of a row that their sessions have not acknowledged."""
    for claim in row.claims:
        if claim.state in UNHEARD:
            yield PendingVerdict(row.tenant_id, claim, verdict_on(row, claim, instance))


class VerdictSender:
    """Implements `CommitFollower`: sends verdicts, and has the file of limits read again."""

    def __init__(self, settings: QuotaSettings, limits: LimitsFile) -> None:
        self._settings, self._limits = settings, limits
        self._topic = settings.pipeline_topics.events
        self._keys = settings.keys
        self._states: dict[int, PartitionState] = {}  # of which the rows are known
        self._rows: dict[int, dict[bytes, TenantQuota]] = {}
        self._fresh: list[PendingVerdict] = []
        self._sent: dict[tuple[str, QuotaClaim], _Sent] = {}
        self._turn: int | None = None  # the last one
        self._looked_ms = self._made_ms = 0.0
        self._failed = False
        self._producer = self._made()

    @property
    def gauges(self) -> Mapping[MetricName, ReadGauge]:
        """The claims of runs and of sessions by state, and the accounts of tokens."""
        return {
            "sessionary_processor_token_accounts": self._count_accounts,
            "sessionary_processor_quota_claims": partial(self._count_claims, "concurrent_runs"),
            "sessionary_processor_session_claims": partial(self._count_claims, "live_sessions"),
        }

    def note_commit(self, partition: int, outcome: BatchResult) -> None:
        """Take the rows that a transaction changed; their verdicts are sent at the next turn."""
        rows = self._rows.get(partition)
        if rows is None:
            return  # it was just opened: all its rows are looked at then
        for key, row in outcome.rows.items():
            if row is None:
                rows.pop(key, None)
            else:
                rows[key] = row
                self._fresh += pending_verdicts(row, self._settings.worker_name)

    def attend(self, now_ms: float, states: Mapping[int, PartitionState]) -> None:
        """Send the verdicts that are due: new ones at once, others again."""
        for partition in self._states.keys() - states.keys():
            del self._states[partition], self._rows[partition]
        for partition, state in states.items():
            if self._states.get(partition) is not state:
                self._learn_rows(partition, state)
        fresh, self._fresh = self._fresh, []
        for pending in fresh:
            if (pending.tenant_id, pending.claim) not in self._sent:
                self._send(pending, now_ms, REPEAT_MS)
        if now_ms - self._looked_ms >= REPEAT_MS:
            self._looked_ms = now_ms
            self._limits.refresh()
            self._send_again(now_ms)
            self._ask_holders(now_ms)
        self._producer.poll(0)
        if self._failed and now_ms - self._made_ms >= RENEW_MS:
            former, self._producer = self._producer, self._made()
            self._failed, self._made_ms = False, now_ms
            discard_producer(former)

    def close(self) -> None:
        """Wait at most 1 s for records under way."""
        self._producer.flush(1.0)

    def _learn_rows(self, partition: int, state: PartitionState) -> None:
        found = {key: state.rows.get(key) for key in set(state.keys_to_list())}
        rows = {key: row for key, row in found.items() if row is not None}
        self._states[partition], self._rows[partition] = state, rows
        for row in rows.values():
            self._fresh += pending_verdicts(row, self._settings.worker_name)

    def _send_again(self, now_ms: float) -> None:
        former, self._sent = self._sent, {}
        for rows in self._rows.values():
            for row in rows.values():
                for pending in pending_verdicts(row, self._settings.worker_name):
                    name = pending.tenant_id, pending.claim
                    sent = former.get(name, _Sent(now_ms, REPEAT_MS / 2))
                    self._sent[name] = sent
                    if now_ms >= sent.again_ms:
                        self._send(pending, now_ms, min(2 * sent.pause_ms, REPEAT_MS_MAX))

    def _ask_holders(self, now_ms: float) -> None:
        """Ask the sessions whose turn has come since the last call if they hold their slots."""
        turn = int(now_ms) // REPEAT_MS
        passed = 0 if self._turn is None else min(turn - self._turn, _TURNS)
        self._turn = turn
        for rows in self._rows.values():
            for row in rows.values():
                for claim in row.claims:
                    if (turn - claim.offset) % _TURNS < passed and claim.state == "taken":
                        verdict = verdict_on(row, claim, self._settings.worker_name)
                        self._produce(PendingVerdict(row.tenant_id, claim, verdict))

    def _send(self, pending: PendingVerdict, now_ms: float, pause_ms: float) -> None:
        self._sent[pending.tenant_id, pending.claim] = _Sent(now_ms + pause_ms, pause_ms)
        self._produce(pending)

    def _produce(self, pending: PendingVerdict) -> None:
        value = encode_record(pending.verdict)
        signature = self._keys.sign(pending.key, value)
        try:
            self._producer.produce(self._topic, value, pending.key, headers=[signature], on_delivery=self._on_delivery)
        except (BufferError, KafkaException) as error:
            self._failed = True
            _log.warning("a verdict on a quota was not sent: %(error)s", **error_fields(error))

    def _on_delivery(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self._failed = True

    def _count_claims(self, quota: QuotaName) -> dict[str, int]:
        rows = (row for rows in list(self._rows.values()) for row in list(rows.values()) if row.quota == quota)
        counts = Counter(claim.state for row in rows for claim in row.claims)
        counts["rejected"] += counts["over_tokens"]
        return {state: counts[state] for state in _STATES}

    def _count_accounts(self) -> dict[str, int]:
        """Return how many rows count tokens, by whether these are used up."""
        rows = [row for rows in list(self._rows.values()) for row in list(rows.values()) if row.tokens]
        used_up = sum(row.token_limit is not None and row.tokens >= row.token_limit for row in rows)
        return {"within": len(rows) - used_up, "used_up": used_up}

    def _made(self) -> Producer:
        return Producer(
            {
                **self._settings.client_config(),
                "linger.ms": 0,
                "message.timeout.ms": 5_000,
                "partitioner": "murmur2_random",
            }
        )


# The job of a worker of the role quotas.


def quotas_job(settings: QuotaSettings) -> Job:
    """Return the job of the role quotas.

    Raises `SettingsError` if the file of limits cannot be used.
    """
    limits = LimitsFile(settings.quotas_file)
    judge = QuotaJudge(limits.limits_of)
    row_codec, decoder = FamilyCodec(judge.families), decoder_for(settings, in_background=True)
    of_partition: PartitionSettings = partition_settings(settings)

    def new_state(partition: int) -> PartitionState:
        return PartitionState(partition, of_partition, decoder, judge)

    def make_transaction(
        partition: int, outcome: BatchResult, started_at: int, stored: StoredLookup = nothing_stored
    ) -> Transaction:
        # No audit record and no batch: those of sessions are numbered by the offsets of the events.
        rules = rules_to_write(outcome.position.rules, outcome.position.announced)
        rows = row_codec.pack_changes(outcome.rows, rules, stored)
        records = changelog_records(settings.topics.changelog, rows)
        return Transaction(records, {key: packed and packed.stored for key, packed in rows.items()})

    return Job(new_state, make_transaction, row_codec, follower=VerdictSender(settings, limits))


def run_quotas(settings: QuotaSettings) -> None:
    """Run a worker until SIGTERM or SIGINT. Blocks, and raises, as `run_processor`."""
    run_processor(settings, quotas_job(settings), "quotas")
