"""The partitions of this worker: their owners start, end, and start again after a failure."""

import asyncio
import functools
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from sessionary.schemas.records import Position
from sessionary.schemas.telemetry.log_fields import key_fields
from sessionary.schemas.telemetry.role_logs import error_fields, role_logger
from sessionary.stream_processors.core.model import ClockSetting, LogRecord, RebuildMode
from sessionary.stream_processors.errors import EndInDoubt, Halted, Lost
from sessionary.stream_processors.runtime.decisions import (
    CLOCKS_APART_S_MAX,
    BrokerTime,
    OperatorDecision,
    read_broker_time,
)
from sessionary.stream_processors.runtime.partition_owner import PartitionOwner
from sessionary.stream_processors.runtime.rebuild import RebuildPlan, plan_rebuild
from sessionary.stream_processors.runtime.worker_context import WorkerContext
from sessionary.stream_processors.store.stores import PartitionStores

# The repair of a clock that leapt ahead and back, on which a processor decides by itself.
#
# A partition that is halted by a stamp far ahead of the worker's clock never resumes by waiting:
# once that clock has caught up, the stamps would still move the partition's clock past limits that
# have not ended. It stays halted until broker and worker agree about the time again. Then the
# stamp is refuted by the broker that made it, and the processor does what an operator would do: it
# sets the partition's clock to the broker's time, as a decision in the audit trail. No limit ends
# early by that, whichever of the two clocks was wrong before.
#
# The clock is only set forward. If broker and worker agree on a time before the partition's own,
# both may have been set back, and the stamps be right; an operator knows more. After the time of
# the partition's clock has passed again, it makes no difference.


PRINCIPAL: Final = "processor"  # in the audit trail


def waits_for_repair(fault: Halted) -> bool:
    """Return whether a partition that is halted by `fault` resumes only by a clock repair."""
    return fault.reason == "clock_ahead"


def with_way_out(fault: Halted, partition: int) -> Halted:
    """Return a fault as an operator sees it: a stamp ahead of the clock with its ways out."""
    if not waits_for_repair(fault):
        return fault
    way_out = (
        f"The partition stays halted until both clocks agree again within {CLOCKS_APART_S_MAX:g} s. Then the processor "
        "sets the partition's clock to the broker's time, within half a minute; `sessionary partition repair-clock "
        f"{partition}` does it at once. No deadline fires early. If the stamp is right, because this worker's clock "
        f"was behind, `sessionary partition retry {partition}` continues without a repair"
    )
    return Halted(fault.reason, f"{fault.detail}. {way_out}", None, fault.offset, fault.key)


def find_own_repair(fault: Halted, position: Position, broker: BrokerTime) -> ClockSetting | None:
    """Return how a processor sets the clock of a partition that waits for it; None: not yet.

    `position`: where the partition is halted. `broker`: its leader's time, asked for just now.
    """
    if abs(broker.ahead_s) > CLOCKS_APART_S_MAX or broker.stamp_ms < position.clock_ms:
        return None
    reason = (
        f"the stamp of offset {fault.offset} was far ahead of the worker's clock, and broker and worker agree again "
        f"({broker.ahead_s:+,.1f} s)"
    )
    return ClockSetting(broker.stamp_ms, broker.offset, reason, PRINCIPAL)


_log = role_logger(__name__)
_BACK_OFF_S = 0.1
_BACK_OFF_S_MAX = 2.0  # an attempt itself waits long for a broker that is away
_HEARTBEAT_LOOK_S = 0.2
_CLOSE_S = 15.0
# A halted partition is opened again after 30 s, then after twice as long each time: most causes
# need an operator, and opening reads the changelog.
HALT_RETRY_S = 30.0
HALT_RETRY_S_MAX = 300.0
PLAN_S_MAX = 600.0  # of a dry run: longer than a fold of a week takes
_HALT_OVER_S = 5.0  # a partition that is open for this long without a commit is no longer halted


class _Halt(NamedTuple):
    """Why a partition is halted, and the pause before it is opened again."""

    fault: Halted
    pause_s: float


class Assignment:
    """The owners of this worker's partitions, by partition.

    All of it belongs to the event loop. Nothing blocks; only `close` waits.
    """

    def __init__(
        self,
        context: WorkerContext,
        stores: PartitionStores,
        heartbeat_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`heartbeat_s` returns when the group last acknowledged a heartbeat, on the monotonic
        clock. By default there is no group that could lose this worker.
        """
        self.owners: dict[int, PartitionOwner] = {}
        self.has_assignment = False  # whether the group ever gave one, be it an empty one
        self._context = context
        self._stores = stores
        self._heartbeat_s = heartbeat_s
        self._retiring: dict[int, PartitionOwner] = {}
        self._pauses_s: dict[int, float] = {}  # before the last new start after a failure, by partition
        self._halts: dict[int, _Halt] = {}  # also while the partition is opened again
        self._clock_checks: set[asyncio.Task[None]] = set()
        self.is_rebalancing = False  # whether the group gives another assignment soon
        self._closed = False

    def begin_rebalance(self) -> None:
        """Open no failed partition again before the next assignment: another worker may get it.

        All owners continue: if another worker gets a partition, it fences the owner here.
        """
        self.is_rebalancing = True

    def take_assignment(self, partitions: Iterable[int]) -> None:
        """Take the whole assignment of a new generation.

        The owner of a partition that stays continues. It answers no reader until it has committed,
        because in between the partition may have been another worker's.
        """
        if self._closed:
            return
        self.has_assignment, self.is_rebalancing = True, False
        self._context.metrics.rebalances.inc()
        wanted = sorted(partitions)
        former, self.owners = self.owners, {}
        for partition, owner in former.items():
            if partition in wanted and not owner.task.done() and not owner.end_requested:
                owner.require_confirmation()
                self.owners[partition] = owner
            else:
                owner.request_end()
                self._retiring[partition] = owner
        self._pauses_s.clear()
        self._halts = {partition: halt for partition, halt in self._halts.items() if partition in self.owners}
        for partition in wanted:
            if partition not in self.owners:
                self._start_owner(partition, _decision_after(former[partition]) if partition in former else None)
        for partition in former.keys() - set(wanted):
            self._retire_owner(partition)
        self._update_gauges()

    def offer_records(
        self, partition: int, begin_offset: int, records: Sequence[LogRecord], size: int | None = None
    ) -> None:
        """Hand a fetch to its partition's owner; drop it if there is none."""
        if (owner := self.owners.get(partition)) is not None:
            owner.offer_records(begin_offset, records, size)

    def halt_partition(self, partition: int, fault: Halted, offset: int | None = None) -> None:
        """Halt an open partition before the record at `offset`, by default at its position."""
        if (owner := self.owners.get(partition)) is not None:
            owner.request_halt(with_way_out(fault, partition), offset)

    def reopen_partition(self, partition: int, decision: OperatorDecision | None = None) -> None:
        """End a partition's owner and begin a new one, which carries out an operator's decision.

        Nothing happens while the worker ends.
        """
        if self._closed:
            return
        owner = self.owners.pop(partition)
        owner.request_end()
        self._retiring[partition] = owner
        self._start_owner(partition, decision)
        self._update_gauges()

    async def plan_rebuild(self, partition: int, mode: RebuildMode) -> RebuildPlan:
        """Return what a rebuild of a halted partition would write; see `rebuild.plan_rebuild`.

        Ends after `PLAN_S_MAX`, when no caller waits any more: plans that go on would take turns
        of partitions that open.
        """
        ends_s = time.monotonic() + PLAN_S_MAX
        try:
            return await plan_rebuild(
                self._context, partition, mode, lambda: not self._closed and time.monotonic() < ends_s
            )
        except Lost as error:
            if time.monotonic() < ends_s:
                raise
            detail = f"a dry run took longer than {PLAN_S_MAX:g} s, and was ended; a rebuild takes as long as it needs"
            raise Lost(f"partition {partition}: {detail}") from error

    async def prepare_leaving(self) -> dict[int, int]:
        """Prepare to leave the group: open no partition any more, and answer no reader.

        Open partitions are folded until another worker fences them, or until `close`. Waits at most
        15 s for all other owners to end, and for those that replace their producer: one that fenced
        later would fence a successor. Returns the `next_offsets`.
        """
        self._closed = True
        for owner in self.owners.values():
            owner.stop_answering()
            if not owner.is_open or owner.is_renewing:
                owner.request_end()
        await _wait_for_ends(owner for owner in self._all_owners() if owner.end_requested)
        return self.next_offsets

    async def wait_until_taken(self, timeout_s: float) -> None:
        """Wait until other workers have taken the open partitions, at most `timeout_s`."""
        if tasks := [owner.task for owner in self.owners.values()]:
            await asyncio.wait(tasks, timeout=timeout_s)

    async def close(self) -> None:
        """End all owners, waiting at most 15 s."""
        self._closed = True
        for check in self._clock_checks:
            check.cancel()
        for owner in self.owners.values():
            owner.request_end()
        await _wait_for_ends(self._all_owners())
        self.owners = {}
        self._stores.close()

    def is_open(self, partition: int) -> bool:
        """Return whether this worker has the partition open."""
        owner = self.owners.get(partition)
        return owner is not None and owner.is_readable

    @property
    def next_offsets(self) -> dict[int, int]:
        """The next offset to be folded, of each open partition."""
        return {partition: owner.position.next_offset for partition, owner in self.owners.items() if owner.is_open}

    @property
    def events_topic_id(self) -> str | None:
        """Kafka's id of the topic that `next_offsets` are of; None if unknown."""
        return next((owner.topic_ids.events for owner in self.owners.values() if owner.is_open), None)

    @property
    def open_positions(self) -> dict[int, Position]:
        """The `position` of each open partition."""
        return {partition: owner.position for partition, owner in self.owners.items() if owner.is_open}

    @property
    def halted_partitions(self) -> dict[int, Halted]:
        """The fault of each halted partition, also while the partition is opened again."""
        return {partition: halt.fault for partition, halt in self._halts.items()}

    @property
    def is_ready(self) -> bool:
        """Whether the group gave an assignment and all of its partitions are open, or halted."""
        opened = (owner.is_open or partition in self._halts for partition, owner in self.owners.items())
        return self.has_assignment and all(opened)

    def _all_owners(self) -> list[PartitionOwner]:
        return [*self.owners.values(), *self._retiring.values()]

    def _start_owner(self, partition: int, decision: OperatorDecision | None = None) -> None:
        former = self._retiring.pop(partition, None)
        owner = PartitionOwner(
            *(self._context, partition, lambda: self._stores.store_of(partition), former, decision), self._may_fence
        )
        self.owners[partition] = owner
        owner.task.add_done_callback(lambda task: self._on_owner_end(owner, task))
        if partition in self._halts:
            asyncio.get_running_loop().call_later(_HALT_OVER_S, self._check_halt, owner)

    def _retire_owner(self, partition: int) -> None:
        """Close the store of a partition that left, once its last owner is done."""
        owner = self._retiring[partition]

        def close_store(_: object) -> None:
            if self._retiring.get(partition) is owner:
                del self._retiring[partition]
                self._stores.close_store(partition)

        owner.task.add_done_callback(close_store)

    def _on_owner_end(self, owner: PartitionOwner, task: "asyncio.Task[None]") -> None:
        """Log a failure, and open the partition again after a pause."""
        fault = None if task.cancelled() else task.exception()
        if self.owners.get(owner.partition) is not owner or owner.end_requested or self._closed:
            if fault is not None and not isinstance(fault, Lost):
                _log.warning(
                    "partition %(partition)d, no longer owned, failed: %(error)s",
                    partition=owner.partition,
                    **error_fields(fault),
                )
            return
        if isinstance(fault, Halted):
            self._retry_halted_later(owner, fault)
            return
        if isinstance(fault, Lost) and self.is_rebalancing:
            _log.info(
                "partition %(partition)d waits for the assignment: %(error)s",
                partition=owner.partition,
                **error_fields(fault),
            )
            return
        self._context.metrics.errors.labels("reopened").inc()
        _log.warning(
            "partition %(partition)d is opened again: %(error)s",
            partition=owner.partition,
            exc_info=None if isinstance(fault, Lost) else fault,
            **error_fields(fault or asyncio.CancelledError()),
        )
        former_s = self._pauses_s.get(owner.partition, _BACK_OFF_S)
        pause_s = _BACK_OFF_S if owner.commits else min(_BACK_OFF_S_MAX, 2 * former_s)
        if isinstance(fault, EndInDoubt) and owner.commits:  # nothing has failed
            pause_s = 0.0
        self._pauses_s[owner.partition] = pause_s
        # If it is lost again and again, its halt says more than one more try.
        decision = _decision_after(owner) if pause_s < _BACK_OFF_S_MAX else None
        asyncio.get_running_loop().call_later(pause_s, self._reopen_if_current, owner, decision)

    def _retry_halted_later(self, owner: PartitionOwner, fault: Halted) -> None:
        """Open a halted partition again after a pause: its cause may be gone. Log only changes."""
        former = self._halts.get(owner.partition)
        is_new = former is None or former.fault.reason != fault.reason
        pause_s = HALT_RETRY_S if former is None or is_new else min(HALT_RETRY_S_MAX, 2.0 * former.pause_s)
        if fault.clears_in_s is not None:
            pause_s = min(pause_s, max(HALT_RETRY_S, fault.clears_in_s))
        self._halts[owner.partition] = _Halt(fault, pause_s)
        if is_new:
            self._context.metrics.errors.labels("halted").inc()
            self._context.metrics.state_hash_mismatches.labels("changelog").inc(fault.reason == "changelog_incomplete")
            _log.error(
                "partition %(partition)d is halted until its cause is removed: %(error)s",
                partition=owner.partition,
                offset=owner.position.next_offset if fault.offset is None else fault.offset,
                **key_fields(fault.key),
                **error_fields(fault),
            )
            self._update_gauges()
        if waits_for_repair(fault):
            self._check_clock_later(owner, fault)
        else:
            asyncio.get_running_loop().call_later(pause_s, self._reopen_if_current, owner)

    def _check_clock_later(self, owner: PartitionOwner, fault: Halted) -> None:
        """Look again after a pause if the broker's clock is right; a look opens nothing."""

        def begin_check() -> None:
            if not self._closed and self.owners.get(owner.partition) is owner:
                check = asyncio.create_task(self._check_clock(owner, fault))
                self._clock_checks.add(check)
                check.add_done_callback(self._clock_checks.discard)

        asyncio.get_running_loop().call_later(HALT_RETRY_S, begin_check)

    async def _check_clock(self, owner: PartitionOwner, fault: Halted) -> None:
        """Open a halted partition with a repair of its clock, if this is the time for it."""
        context, partition, setting = self._context, owner.partition, None
        try:
            broker = await context.run_blocking(read_broker_time, context.settings, partition)
            setting = find_own_repair(fault, owner.position, broker)
        except Lost as error:
            _log.info("the time of a broker is not known: %(error)s", partition=partition, **error_fields(error))
        if setting is None:
            self._check_clock_later(owner, fault)
        else:
            self._reopen_if_current(owner, setting)

    def _check_halt(self, owner: PartitionOwner) -> None:
        """Forget a partition's halt once it works again."""
        if self._closed or self.owners.get(owner.partition) is not owner or owner.task.done():
            return
        if not owner.is_open or (owner.commits == 0 and time.monotonic() - owner.committed_s < _HALT_OVER_S):
            asyncio.get_running_loop().call_later(_HALT_OVER_S, self._check_halt, owner)
            return
        del self._halts[owner.partition]
        _log.warning("partition %(partition)d is no longer halted", partition=owner.partition)
        self._update_gauges()

    def _reopen_if_current(
        self, owner: PartitionOwner, decision: OperatorDecision | None = None, *, waited: bool = False
    ) -> None:
        """Open the partition again unless it has another owner; first wait for the group's answer.

        Without an answer for a session time-out, another worker may have the partition, which a new
        owner here would fence.
        """
        if not self._is_current(owner):
            return  # during a rebalance, the assignment decides
        if self._may_fence(owner):
            self.reopen_partition(owner.partition, decision)
            return
        if not waited:
            _log.warning(
                "partition %(partition)d waits for its group, which has acknowledged no heartbeat for "
                "%(unheard_s).0f s",
                unheard_s=time.monotonic() - self._heartbeat_s(),
                partition=owner.partition,
            )
        look_again = functools.partial(self._reopen_if_current, owner, decision, waited=True)
        asyncio.get_running_loop().call_later(_HEARTBEAT_LOOK_S, look_again)

    def _is_current(self, owner: PartitionOwner) -> bool:
        return not self._closed and not self.is_rebalancing and self.owners.get(owner.partition) is owner

    def _may_fence(self, owner: PartitionOwner) -> bool:
        """Return whether the partition is surely this worker's and the owner's: the group said so
        within a session time-out, and no rebalance is under way.
        """
        unheard_s = time.monotonic() - self._heartbeat_s()
        return self._is_current(owner) and unheard_s <= self._context.settings.session_timeout_ms / 1_000

    def _update_gauges(self) -> None:
        metrics = self._context.metrics
        metrics.owned.set(len(self.owners))
        metrics.halted.clear()
        for fault in self.halted_partitions.values():
            metrics.halted.labels(fault.reason).inc()


def _decision_after(owner: PartitionOwner) -> OperatorDecision | None:
    """Return the decision that is left of an owner that ended because it lost its partition."""
    lost = owner.task.done() and not owner.task.cancelled() and isinstance(owner.task.exception(), Lost)
    return owner.decision_left if lost else None


async def _wait_for_ends(owners: Iterable[PartitionOwner]) -> None:
    if tasks := [owner.task for owner in owners]:
        _, late = await asyncio.wait(tasks, timeout=_CLOSE_S)
        for task in late:
            _log.warning("%(task)s did not end within %(limit_s)g s", task=task.get_name(), limit_s=_CLOSE_S)
