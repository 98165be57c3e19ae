"""What a transaction writes: no record of the events topic leads to one that its topic rejects."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import pytest

from sessionary.schemas.codec import Decoder, encode_record
from sessionary.schemas.codec.record_sizes import LIST_MAX, batch_bytes
from sessionary.schemas.headers import TRANSACTION, find_transaction, transaction_header
from sessionary.schemas.limits import ITEMS_MAX, NAME_CHARACTERS_MAX
from sessionary.schemas.records import (
    AuditRecord,
    BatchAcknowledged,
    BatchRecord,
    CleanupRequest,
    MigrationRequest,
    Position,
    QuotaNotice,
    RejectedEvent,
    TaskRequest,
)
from sessionary.schemas.rules import NEWEST_RULES
from sessionary.schemas.topics import record_bytes_limits
from sessionary.schemas.types import CleanupAction, ErrorInfo, Limits
from sessionary.stream_processors.core.model import Emitted, Stream
from sessionary.stream_processors.runtime.job import processor_job
from sessionary.stream_processors.settings import ProcessorSettings
from tests.core.oracle_rig import FIRST_POSITION, OracleRig
from tests.support.event_factory import TICK, EventFactory
from tests.support.values import example

SETTINGS = ProcessorSettings(partitions=1)
JOB = processor_job(SETTINGS)
LIMITS = {topic: record_bytes_limits()[field] for field, topic in SETTINGS.topics._asdict().items()}
AUDIT = SETTINGS.topics.audit
REQUESTS: Mapping[Stream, type] = {
    "cleanup": CleanupRequest,
    "tasks": TaskRequest,
    "migrations": MigrationRequest,
    "quotas": QuotaNotice,
}
LONG = 3_000_000  # characters: such a value arrives compressed
MUCH = 20_000_000
LONG_ERROR = ErrorInfo("retryable", "boom", "m" * 16_000)


class JobRig(OracleRig):
    """Also makes each record's transaction, and fails if a topic would refuse a record of it."""

    def append(self, key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes]] = ()) -> str:
        outcome = super().append(key, value, headers)
        self.written = list(JOB.transaction(0, self.outcomes[-1], 0).records)
        for topic, record_key, record_value, _ in self.written:
            assert batch_bytes(record_key, record_value) <= LIMITS[topic], topic
        return outcome

    def records_written(self) -> Iterator[object]:
        return (Decoder().decode_record(value) for _, _, value, _ in self.written if value is not None)

    def letter(self) -> RejectedEvent:
        (letter,) = (record for record in self.records_written() if isinstance(record, RejectedEvent))
        return letter

    def audit(self) -> AuditRecord:
        (audit,) = (record for record in self.records_written() if isinstance(record, AuditRecord))
        return audit


@pytest.mark.parametrize("size", [LONG, MUCH])
def test_an_unreadable_value_larger_than_a_letter_is_left_out_of_it(size: int) -> None:
    rig, agent = JobRig(), EventFactory()
    assert rig.append(agent.key.encoded(), b"A" * size) == "rejected undecodable"
    assert rig.letter().value is None
    assert f"(value of {size} bytes left out" in rig.letter().detail


@pytest.mark.parametrize("size", [600_000, LONG, MUCH])
@pytest.mark.parametrize("byte", [b"k", b"\xff"])
def test_a_bad_key_of_any_size_is_rejected(byte: bytes, size: int) -> None:
    rig = JobRig()
    assert rig.append(byte * size, b"x") == "rejected bad_key"
    assert rig.letter().value == b"x"
    assert (rig.letter().key == byte * size) == (size == 600_000)


@pytest.mark.parametrize(
    "field", ["event_id", "service_id", "agent_id", "producer_id", "user_id", "actor", "agent_role"]
)
def test_a_rejected_event_with_a_long_text_is_rejected(field: str) -> None:
    for size in (1_200_000, LONG):
        rig, agent = JobRig(), EventFactory()
        value = agent.event_bytes("session_started", {field: "é" * (size // 2)})
        assert rig.append(agent.key.encoded(), value) == "rejected invalid_value"
        assert rig.audit().reason.startswith(field)


def test_a_repetition_with_the_longest_event_id_leaves_nothing_but_its_count() -> None:
    rig, agent = JobRig(), EventFactory()
    rig.start(agent)
    value = agent.event_bytes("session_activity", {"event_id": "x" * NAME_CHARACTERS_MAX})
    assert rig.append(agent.key.encoded(), value) == "applied"
    assert rig.append(agent.key.encoded(), value) == "duplicate"
    (batch,) = rig.records_written()
    assert isinstance(batch, BatchRecord)
    assert (batch.applied, batch.duplicate, batch.rejected) == (0, 1, 0)


@pytest.mark.parametrize("length", [NAME_CHARACTERS_MAX + 1, 1_200_000])
def test_an_event_with_a_longer_id_is_rejected_each_time_and_its_letter_has_the_value(length: int) -> None:
    rig, agent = JobRig(), EventFactory()
    rig.start(agent)
    value = agent.event_bytes("session_activity", {"event_id": "x" * length})
    for _ in range(2):
        assert rig.append(agent.key.encoded(), value) == "rejected invalid_value"
        assert rig.letter().value == value
        assert (rig.letter().event_id, rig.audit().event_id) == (None, None)


def test_a_confirmed_clean_up_with_very_many_actions_is_audited() -> None:
    done, failed = "é" * NAME_CHARACTERS_MAX, "ö" * NAME_CHARACTERS_MAX
    actions = [CleanupAction(done, True, 5), CleanupAction(failed, False, 0)] * (ITEMS_MAX // 2)
    found: list[tuple[Sequence[str], Sequence[str]]] = []
    for rules in (NEWEST_RULES, NEWEST_RULES._replace(output_bytes_max=512 << 10)):
        rig, agent = JobRig(position=FIRST_POSITION._replace(rules=rules)), EventFactory()
        rig.start(agent)
        assert rig.send(agent, "session_terminated") == "applied"
        (request,) = (record for record in rig.records_written() if isinstance(record, CleanupRequest))
        assert rig.send(agent, "resources_released", cleanup_id=request.cleanup_id, actions=actions) == "applied"
        audit_bytes = [batch_bytes(key, value) for topic, key, value, _ in rig.written if topic == AUDIT]
        assert audit_bytes[0] <= rules.output_bytes_max
        found.append((rig.audit().actions_done, rig.audit().actions_failed))
    whole, cut = (((done,) * n, (failed,) * n) for n in (ITEMS_MAX // 2, LIST_MAX))
    assert found == [whole, (cut[0] + ("…",), cut[1] + ("…",))]


def test_an_acknowledgement_is_reported() -> None:
    reported = BatchAcknowledged(3, 9, 1_000, SETTINGS.worker_name)
    assert JOB.acknowledgement(3, Position(5, 1, 0, 9, 0), 1_000) == reported


def test_outputs_are_cut_to_the_sizes_that_the_rules_in_force_allow() -> None:
    small = NEWEST_RULES._replace(output_bytes_max=600_000, rejected_bytes_max=700_000)
    found: dict[str, tuple[int, int]] = {}
    for name, rules in {"newest": NEWEST_RULES, "small": small}.items():
        rig, agent = JobRig(position=FIRST_POSITION._replace(rules=rules)), EventFactory()
        rig.start(agent)
        assert rig.append(agent.key.encoded(), b"A" * 690_000) == "rejected undecodable"
        kept = len(rig.letter().value or b"")
        assert rig.append(agent.key.encoded(), b"A" * 700_000) == "rejected undecodable"
        found[name] = kept, len(rig.letter().value or b"")
    assert found == {"newest": (690_000, 700_000), "small": (690_000, 0)}


def test_an_audit_record_is_cut_to_the_size_that_the_rules_in_force_allow() -> None:
    found: list[int] = []
    for rules in (NEWEST_RULES, NEWEST_RULES._replace(output_bytes_max=10_000)):
        rig, agent = JobRig(position=FIRST_POSITION._replace(rules=rules)), EventFactory()
        rig.start(agent)
        assert rig.send(agent, "session_errored", error=LONG_ERROR) == "applied"
        found.append(len(rig.audit().reason))
    assert found == [16_006, 1_001]


def test_each_output_is_counted_and_names_its_transaction() -> None:
    """Two of one topic: a number, not a mark."""
    emitted: list[Emitted] = []
    for stream, record in REQUESTS.items():
        emitted += [Emitted(stream, b"k", example(record))] * (2 if stream == "tasks" else 1)
    rig = JobRig()
    rig.start(EventFactory())
    outcome = rig.outcomes[-1]._replace(emitted=emitted)
    outcome = outcome._replace(counts=outcome.counts._replace(cleanup=1, tasks=2, migrations=1, quotas=1))
    transaction = JOB.transaction(3, outcome, 0)
    written = [*transaction.records, *transaction.elsewhere]
    name = transaction_header(3, outcome.position.batch_number)
    assert find_transaction([("other", b"1:1"), name]) == (3, outcome.position.batch_number)
    found = Counter(topic.rpartition(".")[2] for topic, _, _, headers in written if headers == [name])
    assert found == {"cleanup": 1, "tasks": 2, "migrations": 1, "quotas": 1}
    (batch,) = (
        Decoder().decode_record(value) for topic, _, value, _ in written if topic == SETTINGS.topics.batches and value
    )
    assert isinstance(batch, BatchRecord)
    assert (batch.cleanup, batch.tasks, batch.migrations, batch.quotas) == (1, 2, 1, 1)


def test_a_request_fits_with_the_name_of_its_transaction() -> None:
    """The name is the longest that a partition and a number can have."""
    request = example(CleanupRequest)
    limit = 600_000
    for spare in (0, 10, 63, 64, 65):
        text = "x" * (limit - spare - batch_bytes(b"k", encode_record(request._replace(reason=""))))
        rig = JobRig(position=FIRST_POSITION._replace(rules=NEWEST_RULES._replace(output_bytes_max=limit)))
        rig.start(EventFactory())
        outcome = rig.outcomes[-1]
        position = outcome.position._replace(batch_number=(1 << 63) - 1)
        emitted = [Emitted("cleanup", b"k", request._replace(reason=text))]
        records = JOB.transaction((1 << 31) - 1, outcome._replace(emitted=emitted, position=position), 0).records
        ((value, headers),) = (rest for topic, _, *rest in records if topic == SETTINGS.topics.cleanup)
        assert isinstance(headers, list)
        assert isinstance(value, bytes)
        header_bytes = sum(len(part or "") + 2 for pair in headers for part in pair)
        assert batch_bytes(b"k", value) + header_bytes <= limit, spare


TRACEPARENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def traces_written(rig: JobRig, offset: int) -> dict[str, object]:
    """Return the headers of the records that the last outcome leads to, by topic."""
    outcome = rig.outcomes[-1]._replace(traceparents={offset: TRACEPARENT})
    records = list(JOB.transaction(0, outcome, 0).records)
    for topic, key, value, headers in records:
        trace_bytes = 0 if headers is None else len(TRACEPARENT) + len("traceparent") + 3
        assert batch_bytes(key, value) + trace_bytes <= LIMITS[topic], topic
    written = [
        (topic.rpartition(".")[2], headers or []) for topic, _, _, headers in records if "changelog" not in topic
    ]
    assert all(find_transaction(headers) is not None for topic, headers in written if topic != "batches")  # type: ignore[arg-type]
    return {topic: [each for each in headers if each[0] != TRANSACTION] or None for topic, headers in written}


def test_audit_and_rejection_carry_the_trace_of_their_event() -> None:
    rig, agent = JobRig(), EventFactory()
    assert rig.send(agent, "session_created") == "applied"
    assert traces_written(rig, 0) == {"audit": [("traceparent", TRACEPARENT)], "batches": None}
    assert traces_written(rig, 1) == {"audit": None, "batches": None}, "it is another event's"
    assert rig.append(agent.key.encoded(), b"junk") == "rejected undecodable"
    found = traces_written(rig, 1)
    assert found["rejected"] == [("traceparent", TRACEPARENT)]


def test_what_time_causes_carries_no_event_s_trace() -> None:
    rig, agent = JobRig(), EventFactory()
    rig.start(agent, limits=Limits(max_duration_ms=40_000))
    rig.advance(39_000)
    rig.at += 1_500
    assert rig.append(None, TICK) == "tick"
    (record,) = (record for _, record in rig.outcomes[-1].records_on("audit"))
    assert traces_written(rig, record.source_offset)["audit"] is None


@pytest.mark.parametrize(("spare", "has_trace"), [(64, False), (100, False), (300, True)])
def test_an_audit_record_that_fits_only_without_its_trace_is_written_without(spare: int, has_trace: bool) -> None:
    found: list[AuditRecord] = []
    output_bytes_max = NEWEST_RULES.output_bytes_max
    for _ in range(2):  # the second time by rules that leave `spare` bytes beside the record
        rules = NEWEST_RULES._replace(output_bytes_max=output_bytes_max)
        rig, agent = JobRig(position=FIRST_POSITION._replace(rules=rules)), EventFactory()
        rig.start(agent)
        assert rig.send(agent, "session_errored", {"event_id": "e"}, error=LONG_ERROR) == "applied"
        found.append(rig.audit())
        (size,) = (batch_bytes(key, value) for topic, key, value, _ in rig.written if topic == AUDIT)
        output_bytes_max = size + spare
    assert found[0] == found[1], "nothing of it was cut"
    trace = traces_written(rig, found[1].source_offset)["audit"]
    assert trace == ([("traceparent", TRACEPARENT)] if has_trace else None)
