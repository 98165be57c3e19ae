"""The state of a partition of the topic of quotas."""

from sessionary.stream_processors.core.partition import PartitionState
from sessionary.stream_processors.core.quota.machine import read_quota_arrival


class QuotaPartition(PartitionState):
    """A partition's state as any other's; its records are no events."""

    read_arrival = staticmethod(read_quota_arrival)


__all__ = ["QuotaPartition"]
