"""Open and closed partitions with rows, as the table of sessions sees them."""

from types import SimpleNamespace
from typing import Any

from sessionary.schemas.ids import partition_of
from sessionary.schemas.records import Tombstone
from sessionary.schemas.rules import NEWEST_RULES
from sessionary.stream_processors.store.cached_rows import CachedRows
from sessionary.stream_processors.store.packed_rows import FamilyCodec
from tests.core.oracle_rig import OracleRig
from tests.support.event_factory import EventFactory
from tests.support.tally_family import Tally, tally_judge, tally_key

PARTITIONS = 4
CODEC = FamilyCodec(tally_judge(1_000).families)


class PartitionedRows:
    """Stands for an `Assignment`: sessions, a tombstone and rows of another family.

    `keys` has the sessions' keys.
    """

    def __init__(self, *open_partitions: int) -> None:
        rig = OracleRig()
        for number in range(12):
            rig.start(EventFactory(f"session-{number}"))
        rows: dict[bytes, Any] = dict(rig.fold.rows)
        self.keys = sorted(key.decode() for key in rows)
        self.buried = f"acme:{'0' * 8}-0000-4000-8000-{'0' * 12}"
        rows[self.buried.encode()] = Tombstone("acme", self.buried.partition(":")[2], (), "closed", 1, 7, 99_000)
        self.tally_key = tally_key(self.keys[0].encode()).decode()
        rows[self.tally_key.encode()] = Tally("acme", "s", 1, 1_000)
        self.owners = {partition: owner_of(rows, partition) for partition in open_partitions}

    @property
    def next_offsets(self) -> dict[int, int]:
        return {partition: 1 for partition, owner in self.owners.items() if owner.is_readable}

    def keys_of(self, partition: int) -> list[str]:
        return [key for key in self.keys if partition_of(key.encode(), PARTITIONS) == partition]


def owner_of(rows: dict[bytes, Any], partition: int) -> SimpleNamespace:
    here = {key: row for key, row in rows.items() if partition_of(key, PARTITIONS) == partition}
    stored = CachedRows({key: CODEC.pack(row, NEWEST_RULES.version).stored for key, row in here.items()}, CODEC)
    return SimpleNamespace(is_readable=True, state=SimpleNamespace(rows=stored))
