"""The state of a partition of the topic of quotas."""

from collections.abc import MutableMapping, Sequence
from typing import Any

from sessionary.schemas.codec import Decoder
from sessionary.stream_processors.core.committed import PartitionSettings
from sessionary.stream_processors.core.machine import AnyMachine
from sessionary.stream_processors.core.partition import PartitionState
from sessionary.stream_processors.core.quota.machine import read_quota_arrival


class QuotaPartition(PartitionState):
    """A partition's state as any other's; its records are no events."""

    def __init__(
        self,
        partition: int,
        settings: PartitionSettings,
        decoder: Decoder,
        machines: Sequence[AnyMachine],
        rows: MutableMapping[bytes, Any] | None = None,
    ) -> None:
        super().__init__(partition, settings, decoder, machines, rows)
        # Of the instance: a compiled class has no functions as attributes.
        self.read_arrival = read_quota_arrival


__all__ = ["QuotaPartition"]
