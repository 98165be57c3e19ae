"""What a correct engine writes for a fixed list of keys."""

from collections.abc import Iterator, Sequence

from benchmarks.measurements.keyed_count.check import OutputAuditor, OutputCheck
from benchmarks.measurements.keyed_count.job import key_bytes

EVENTS = 400


KEYS = [number % 7 for number in range(EVENTS)]


def outputs(keys: Sequence[int]) -> Iterator[tuple[bytes, bytes]]:
    """What an engine has to write."""
    counts: dict[int, int] = {}
    for number, drawn in enumerate(keys):
        counts[drawn] = counts.get(drawn, 0) + 1
        yield key_bytes(drawn), b"%d %08d...." % (counts[drawn], number)


def audited(records: Sequence[tuple[bytes, bytes]]) -> OutputCheck:
    auditor = OutputAuditor(KEYS)
    for record in records:
        auditor.take_output(*record)
    return auditor.result()
