"""What a worker of the role quotas does with its partitions."""

from sessionary.schemas.codec.from_settings import decoder_for
from sessionary.schemas.rules import rules_to_write
from sessionary.stream_processors.core.committed import PartitionSettings
from sessionary.stream_processors.core.model import Outcome
from sessionary.stream_processors.core.partition import PartitionState
from sessionary.stream_processors.core.quota.judge import QuotaJudge
from sessionary.stream_processors.process import run_processor
from sessionary.stream_processors.quotas.limits_file import LimitsFile
from sessionary.stream_processors.quotas.settings import QuotaSettings
from sessionary.stream_processors.quotas.verdict_sender import VerdictSender
from sessionary.stream_processors.runtime.job import Job, Transaction, changelog_records, partition_settings
from sessionary.stream_processors.store.packed_rows import FamilyCodec, StoredLookup, nothing_stored


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
        partition: int, outcome: Outcome, started_at: int, stored: StoredLookup = nothing_stored
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
