"""Each recorded log, folded by today's code, comes to what the release wrote.

Codes and parameters of audit records are frozen, their sentences are not: records are compared
without them.
"""

import gc
import json
import os
import pickle
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import groupby, islice, pairwise, zip_longest
from pathlib import Path

import pytest

from sessionary.schemas.codec import encode_position, encode_record
from sessionary.schemas.records import BatchAcknowledged, Position
from sessionary.schemas.settings import KafkaSettings
from sessionary.stream_processors.core.model import POSITION_KEY
from tests.recorded import record
from tests.recorded.adapter import (
    Folded,
    batch_counts,
    comparable,
    fold_at_borders,
    fold_in_cuts,
    is_access,
    read_borders,
    reason_of,
    transition_of,
)
from tests.recorded.coverage import NEVER, REASONS, TRANSITIONS, too_rare
from tests.recorded.log_format import (
    BYTES_MAX,
    OUTPUT_TOPICS,
    LoggedEvent,
    Output,
    OutputsByPartition,
    RecordedLog,
    read_log,
    write_log,
)
from tests.style.project import ROOT
from tests.support.reading import Stored

FOLDER = Path(__file__).parent
RELEASE = "0.2.0"
RELEASES = sorted(path.parent.name for path in FOLDER.glob("*/settings.json"))
# Byte for byte the fold's own. In `batches`, start and instance are the processor's.
SAME_BYTES = ("audit", "rejected", "cleanup", "changelog")
DIFFERENCES_MAX = 5
FROZEN = (
    "what the rules of a release decide is frozen. Undo the change, or make it a branch by a new version of the rules "
    "(docs/decisions/007-rules-have-versions.md), and record the next release beside this one (README.md)"
)
# Records and timers of a batch, at most, for even and odd partitions: no processor uses these.
OTHER_CUTS = ((37, 701), (1_999, 3))

# A recording is made once the records no longer change: `python -m tests.recorded.record 0.2.0`.
needs_recording = pytest.mark.skipif(RELEASE not in RELEASES, reason=f"there is no recording of {RELEASE} yet")

# Prints a hash by the seed, the number of outputs, and their digest.
_FOLD = """
import hashlib, pickle, sys
from tests.recorded.adapter import fold_in_cuts
folded = fold_in_cuts(*pickle.load(sys.stdin.buffer), 100, 100)
outputs = [repr(output) for batch in folded for output in batch.outputs]
print(hash("session"), len(outputs), hashlib.sha256("".join(outputs).encode()).hexdigest())
"""

OutputsByTopic = dict[str, list[Output]]


@pytest.fixture(autouse=True, scope="module")
def _held_in_memory() -> Iterator[None]:
    """The recording is many objects, kept while this module runs: no collection walks over them."""
    gc.collect()
    gc.freeze()
    gc.disable()
    yield
    gc.enable()
    gc.unfreeze()
    recorded.cache_clear()
    refolded.cache_clear()


@cache
def recorded(release: str) -> RecordedLog:
    log = read_log(FOLDER / release)
    audit = {
        partition: [output for output in outputs if not is_access(output)]
        for partition, outputs in log.outputs["audit"].items()
    }
    return log._replace(outputs={**log.outputs, "audit": audit})


def by_topic(batches: Iterable[Folded]) -> OutputsByTopic:
    outputs: OutputsByTopic = defaultdict(list)
    for batch in batches:
        for topic, output in batch.outputs:
            outputs[topic].append(output)
    return outputs


@cache
def refolded(release: str) -> Mapping[int, OutputsByTopic]:
    """The whole log, folded at the recorded borders; by partition."""
    log = recorded(release)
    return {
        partition: by_topic(
            fold_at_borders(log.settings, partition, events, read_borders(log.outputs["changelog"][partition]))
        )
        for partition, events in log.events.items()
    }


def is_same(ours: Output | None, theirs: Output | bytes | None) -> bool:
    if ours is None or theirs is None:
        return False
    plain = comparable(ours)
    return plain.digest() == theirs if isinstance(theirs, bytes) else plain == comparable(theirs)


def ordered(ours: Sequence[Output], theirs: Sequence[Output | bytes]) -> list[Output | bytes]:
    """Return `theirs` with each run of deletions in the order of `ours`.

    A row's children vanish in the order in which they came, or in which a worker loaded them.
    """
    found, start = list(theirs), 0
    for is_deletion, run in groupby(ours, lambda output: output.value is None):
        digests = [output.digest() for output in run]
        part = found[start : start + len(digests)]
        if is_deletion and len(part) > 1:
            places = {output if isinstance(output, bytes) else output.digest(): output for output in part}
            if places.keys() == set(digests):
                found[start : start + len(digests)] = [places[digest] for digest in digests]
        start += len(digests)
    return found


def differences(ours: Sequence[Output], theirs: Sequence[Output | bytes]) -> list[str]:
    """What differs, place by place; only the first few."""
    found = (
        f"record {n}: {mine!r:.2000}\ninstead of {recorded_one!r:.2000}"
        for n, (mine, recorded_one) in enumerate(zip_longest(ours, ordered(ours, theirs)))
        if not is_same(mine, recorded_one)
    )
    return list(islice(found, DIFFERENCES_MAX))


def test_a_recording_is_of_a_release() -> None:
    assert set(RELEASES) <= {RELEASE}


@pytest.mark.parametrize("topic", SAME_BYTES)
@pytest.mark.parametrize("release", RELEASES)
def test_the_log_comes_to_the_recorded_bytes(release: str, topic: str) -> None:
    log = recorded(release)
    assert log.outputs[topic].keys() <= log.events.keys()
    for partition in log.events:
        ours, theirs = refolded(release)[partition][topic], log.outputs[topic].get(partition, [])
        assert differences(ours, theirs) == [], f"partition {partition} of {topic}: {FROZEN}"


@pytest.mark.parametrize("release", RELEASES)
def test_every_batch_counts_what_was_recorded(release: str) -> None:
    log = recorded(release)
    for partition in log.events:
        theirs = [batch_counts(output) for output in log.outputs["batches"][partition] if isinstance(output, Output)]
        ours = [batch_counts(output) for output in refolded(release)[partition]["batches"]]
        assert [counts["number"] for counts in theirs] == list(range(1, len(theirs) + 1))
        assert ours == theirs


@pytest.mark.parametrize("release", RELEASES)
def test_other_batches_give_the_same_records(release: str) -> None:
    """But for the batch number in an audit record, which the adapter sets right.

    The changelog does depend on the cuts: it has a row per session and batch that touched it, and
    a position per batch. So does `batches`.
    """
    log = recorded(release)
    for partition, events in log.events.items():
        borders = read_borders(log.outputs["changelog"][partition])
        cut = OTHER_CUTS[partition % len(OTHER_CUTS)]
        ours = by_topic(fold_in_cuts(log.settings, partition, events, borders, *cut))
        assert len(ours["batches"]) != len(borders)
        for topic in ("audit", "rejected", "cleanup"):
            assert differences(ours[topic], log.outputs[topic][partition]) == [], f"partition {partition} of {topic}"


@pytest.mark.parametrize("release", RELEASES)
def test_processes_of_other_hash_seeds_write_the_same_bytes(release: str) -> None:
    log = recorded(release)
    borders = read_borders(log.outputs["changelog"][1])
    given = pickle.dumps((log.settings, 1, log.events[1][:1_000], borders))
    seeds = {"0", "1"}
    found = [
        subprocess.run(
            [sys.executable, "-c", _FOLD],
            input=given,
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=ROOT,
            capture_output=True,
            check=True,
        ).stdout.split()
        for seed in seeds
    ]
    assert len({hashed for hashed, _, _ in found}) == len(seeds)  # the seeds are in force
    assert len({(count, digest) for _, count, digest in found}) == 1
    assert int(found[0][1]) > 100


@pytest.mark.parametrize("release", RELEASES)
def test_every_transition_and_rejection_is_recorded_often(release: str) -> None:
    folded = refolded(release).values()
    transitions = Counter(filter(None, (transition_of(audit) for topics in folded for audit in topics["audit"])))
    reasons = Counter(reason_of(rejected) for topics in folded for rejected in topics["rejected"])
    assert too_rare(transitions, reasons) == []
    assert not reasons.keys() & NEVER
    assert (len(TRANSITIONS), len(REASONS)) == (14, 47)
    summary = json.loads((FOLDER / release / "settings.json").read_text())["summary"]
    assert summary["transitions"] == dict(sorted(transitions.items()))
    assert summary["reasons"] == dict(sorted(reasons.items()))


@pytest.mark.parametrize("release", RELEASES)
def test_the_recording_holds_outages_cut_timers_and_ticks(release: str) -> None:
    """What makes folding hard: else the recording would prove less than it seems to."""
    log = recorded(release)
    assert len(log.events) == log.settings.partitions >= 2
    borders = [border for changelog in log.outputs["changelog"].values() for border in read_borders(changelog)]
    assert any(border.outputs_written > 0 for border in borders)
    for events in log.events.values():
        stamps = [event.timestamp_ms for event in events]
        assert any(later - former > log.settings.outage_ms for former, later in pairwise(stamps))
        offsets = [event.offset for event in events]
        assert offsets == sorted(set(offsets))
    batches = [batch_counts(output) for topics in refolded(release).values() for output in topics["batches"]]
    for name in ("applied", "duplicate", "rejected", "timers", "ticks"):
        # Its agents repeat themselves least often.
        assert sum(batch[name] for batch in batches) >= (10 if name == "duplicate" else 20), name


@pytest.mark.parametrize("release", RELEASES)
def test_the_recording_is_small(release: str) -> None:
    assert sum(path.stat().st_size for path in (FOLDER / release).iterdir()) <= BYTES_MAX


def flipped(value: bytes) -> bytes:
    """The same bytes but for one bit of the first field, which no sentence for people has."""
    place = min(12, len(value) // 2)
    return value[:place] + bytes([value[place] ^ 1]) + value[place + 1 :]


@needs_recording
@pytest.mark.parametrize("topic", SAME_BYTES)
def test_one_other_bit_in_an_output_is_found(topic: str) -> None:
    ours, theirs = refolded(RELEASE)[0][topic], list(recorded(RELEASE).outputs[topic][0])
    full = next(n for n, output in enumerate(theirs) if isinstance(output, Output) and output.value)
    short = next(n for n, output in enumerate(theirs) if isinstance(output, bytes))
    for place in (full, short):
        changed = list(theirs)
        output = changed[place]
        changed[place] = (
            flipped(output) if isinstance(output, bytes) else output._replace(value=flipped(output.value or b""))
        )
        assert len(differences(ours, changed)) == 1
    assert len(differences(ours[:-1], theirs)) == 1
    assert differences(ours, [*theirs[1:], theirs[0]]) != []


@needs_recording
@pytest.mark.parametrize("change", ["stamp", "value", "key"])
def test_one_other_event_is_found(change: str) -> None:
    log = recorded(RELEASE)
    borders = read_borders(log.outputs["changelog"][0])[:2]
    events = [event for event in log.events[0] if event.offset < borders[-1].next_offset]
    place = next(n for n, event in enumerate(events) if event.key is not None)
    event = events[place]
    match change:
        case "stamp":
            events[place] = event._replace(timestamp_ms=event.timestamp_ms + 1)
        case "value":
            events[place] = event._replace(value=flipped(event.value or b""))
        case _:
            events[place] = event._replace(key=None)
    ours = by_topic(fold_at_borders(log.settings, 0, events, borders))
    found = [topic for topic in SAME_BYTES if differences(ours[topic], log.outputs[topic][0][: len(ours[topic])])]
    assert found


@needs_recording
def test_acknowledgements_between_transactions_are_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor may write one after a pause: the fold knows nothing of it."""
    batches = [output for output in recorded(RELEASE).outputs["batches"][0][:2] if isinstance(output, Output)]
    acknowledged = encode_record(BatchAcknowledged(0, 1, 7, "w1"))
    position = Output(POSITION_KEY, encode_position(Position(1, 0, 0, 1, 0)))
    topics: dict[str, list[Output]] = {
        "batches": [batches[0], Output(None, acknowledged), batches[1], Output(None, acknowledged)],
        "changelog": [position] * 2,
    }

    def read_topic(kafka: KafkaSettings, topic: str, timeout_s: float) -> list[Stored]:
        outputs = topics.get(topic.rpartition(".")[2], [])
        return [Stored(0, n, 0, output.key, output.value, output.headers) for n, output in enumerate(outputs)]

    monkeypatch.setattr(record, "read_topic", read_topic)
    log = record.read_topics(KafkaSettings(), recorded(RELEASE).settings)
    assert log.outputs["batches"] == {0: batches}


@needs_recording
def test_a_log_is_read_as_it_was_written(tmp_path: Path) -> None:
    log = recorded(RELEASE)
    events = {
        0: [
            LoggedEvent(3, 1_000, None, None, ()),
            LoggedEvent(9, 900, b"", b"", (("", b""), ("ü", b"\x00"), ("ü", b"2"))),
        ],
        7: [LoggedEvent(1 << 40, 1 << 41, b"key", b"value" * 100_000, ())],
    }
    outputs: dict[str, OutputsByPartition] = {
        topic: {0: [Output(None, None), bytes(range(32)), Output(b"k", b"v", (("due", b"\x01"),))]}
        for topic in OUTPUT_TOPICS
    }
    small = RecordedLog(log.settings, events, outputs)
    size = write_log(tmp_path / "new", small, {})
    assert read_log(tmp_path / "new") == small
    assert size == sum(path.stat().st_size for path in (tmp_path / "new").iterdir())
    with pytest.raises(FileExistsError):
        write_log(tmp_path / "new", small, {})
