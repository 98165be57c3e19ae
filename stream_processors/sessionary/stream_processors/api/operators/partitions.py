"""The operators' pages: every partition's state, and the ways out of a halt.

    GET  /v1/partitions                          all partitions of the group
    POST /v1/partitions/{partition}/retry        open a halted partition again
    POST /v1/partitions/{partition}/accept-gap   give up events that were deleted unread
    POST /v1/partitions/{partition}/accept-truncation   continue in a log that lost folded records
    POST /v1/partitions/{partition}/skip         do not fold a record at which it is halted
    POST /v1/partitions/{partition}/repair-clock set a clock that leapt to the broker's time
    POST /v1/partitions/{partition}/rebuild      rebuild rows that a changelog lost

All need the role operator. Decisions by the last five, and who made them, are in the audit trail. A
worker answers for its own partitions and asks the other owners.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, cast

from aiohttp.web import Request, Response

from sessionary.schemas.telemetry.role_logs import error_fields, role_logger
from sessionary.stream_processors.api.problems import Problem, json_response, not_ready, parse_number, parse_object
from sessionary.stream_processors.api.routing import NoAnswer, OtherWorkers, was_passed_on
from sessionary.stream_processors.api.tokens import TokenStore
from sessionary.stream_processors.core.model import ClockSetting, Rebuild, RebuildMode
from sessionary.stream_processors.errors import Halted, Lost, RebuildRefused
from sessionary.stream_processors.runtime.assignment import PLAN_S_MAX, Assignment
from sessionary.stream_processors.runtime.decisions import (
    CLOCKS_APART_S_MAX,
    GapAcceptance,
    OperatorDecision,
    RecordSkip,
    TruncationAcceptance,
    read_broker_time,
)
from sessionary.stream_processors.runtime.partition_owner import PartitionOwner
from sessionary.stream_processors.runtime.rebuild import EVENT_TYPES, RebuildPlan, require_rebuildable
from sessionary.stream_processors.settings import ProcessorSettings

_log = role_logger(__name__)
_OPEN_S = 5.0
_MORE_S = 10.0  # than a dry run takes, for its answer
_AHEAD_S_MIN = 1.0  # of an open partition's clock that is worth a repair
REASON_CHARS_MAX = 1_000
# Values of a partition that are not known are null.
_UNKNOWN: Mapping[str, Any] = dict.fromkeys(
    (
        "partition",
        "state",
        "instance",
        "url",
        "reason",
        "detail",
        "halted_at_ms",
        "next_offset",
        "batch_number",
        "live_rows",
        "clock_ms",
        "decisions",
    )
)


class PartitionApi:
    """Answers the operators' requests of one worker."""

    def __init__(
        self, settings: ProcessorSettings, tokens: TokenStore, assignment: Assignment, others: OtherWorkers
    ) -> None:
        self._settings = settings
        self._tokens = tokens
        self._assignment = assignment
        self._others = others

    async def list_partitions(self, request: Request) -> Response:
        """Answer `GET /v1/partitions` with one `partition_document` each. Raises `Problem`.

        A worker that asks for another one gets only the partitions of this worker. Waits at most
        3 s for the others.
        """
        self._tokens.require_pipeline_operator(request.headers.get("Authorization"))
        found = {partition: self._document(owner) for partition, owner in self._assignment.owners.items()}
        if not was_passed_on(request):
            await self._add_others(request, found)
        return json_response({"partitions": [found[partition] for partition in sorted(found)]})

    async def retry_partition(self, request: Request) -> Response:
        """Answer `POST /v1/partitions/{partition}/retry` with `partition_document`.

        Opens a halted partition again, and waits up to 5 s until it is open or halted. Raises
        `Problem`: 409 if it is not halted, 503 if another worker may own it by now.
        """
        return await self._reopen_halted(request, _decide_nothing)

    async def accept_gap(self, request: Request) -> Response:
        """Answer `POST /v1/partitions/{partition}/accept-gap` as a retry does.

        The body is `{"reason": text}`. Raises `Problem`: 409 unless it is halted by `log_gap`.
        """
        return await self._reopen_halted(request, _decide_gap)

    async def accept_truncation(self, request: Request) -> Response:
        """Answer `POST /v1/partitions/{partition}/accept-truncation` as a retry does.

        The body is `{"reason": text}`. Raises `Problem`: 409 unless it is halted by
        `log_truncated`.
        """
        return await self._reopen_halted(request, _decide_truncation)

    async def skip_records(self, request: Request) -> Response:
        """Answer `POST /v1/partitions/{partition}/skip` as a retry does.

        The body is `{"offset": number, "to": number or null, "reason": text}`. Raises `Problem`:
        409 unless it is halted at the record of that offset.
        """
        return await self._reopen_halted(request, _decide_skip)

    async def repair_clock(self, request: Request) -> Response:
        """Answer `POST /v1/partitions/{partition}/repair-clock` as a retry does.

        The body is `{"reason": text}`. The broker is asked for its time, for up to 8 s. Raises
        `Problem`: 409 if there is nothing to repair, or while the broker's
        clock and the worker's differ.
        """
        caller = self._tokens.require_pipeline_operator(request.headers.get("Authorization"))
        partition = self._parse_partition(request)
        if (owner := self._assignment.owners.get(partition)) is None:
            return await self._others.pass_on(request, partition)
        reason = _parse_reason(await parse_object(request))
        require_repairable(owner, time.time())
        self._others.require_membership()
        try:
            broker = await asyncio.to_thread(read_broker_time, self._settings, partition)
        except Lost as error:
            raise not_ready(str(error)) from None
        if abs(broker.ahead_s) > CLOCKS_APART_S_MAX:
            detail = (
                f"partition {partition}: the clock of its leader is {broker.ahead_s:+,.1f} s from this worker's: "
                "correct the wrong one first"
            )
            raise Problem(409, "clocks_differ", "Clocks differ", detail)
        # Meanwhile the partition may have been opened again.
        if (owner := self._assignment.owners.get(partition)) is None:
            raise not_ready(f"partition {partition} is no longer this worker's")
        require_repairable(owner, time.time())
        self._others.require_membership()
        former = owner.position.clock_repairs
        setting = ClockSetting(broker.stamp_ms, broker.offset, reason, caller.principal)
        self._assignment.reopen_partition(partition, setting)
        owner = self._assignment.owners[partition]
        is_set = await owner.wait_until(lambda position: position.clock_repairs != former, _OPEN_S)
        if not is_set and owner.halted is None:
            raise not_ready(f"the clock of partition {partition} could not be set just now")
        return json_response(self._document(owner))

    async def rebuild_rows(self, request: Request) -> Response:
        """Answer `POST /v1/partitions/{partition}/rebuild` as a retry does.

        The body is `{"mode": "refold", "accept_rows" or "accept_topics", "reason": text}`. With
        `"dry_run": true`, nothing changes: the answer is a `rebuild_document`, within 10 minutes.
        Raises `Problem`: 409 unless it is halted so that a rebuild ends it, and if a dry run shows
        that its rows cannot be rebuilt so.
        """
        self._tokens.require_pipeline_operator(request.headers.get("Authorization"))
        partition = self._parse_partition(request)
        body = await parse_object(request)
        is_dry = body.get("dry_run", False)
        if not isinstance(is_dry, bool):
            raise Problem(400, "invalid_value", "Bad dry_run", f"dry_run={is_dry!r}: use true or false")
        owner = self._assignment.owners.get(partition)
        if owner is None:
            return await self._others.pass_on(request, partition, PLAN_S_MAX + _MORE_S if is_dry else None)
        if not is_dry:
            return await self._reopen_halted(request, _decide_rebuild)
        mode, _ = _parse_mode(body), _parse_reason(body)
        if owner.halted is None:
            raise _not_halted(owner)
        _require_rebuildable(partition, owner.halted, mode)
        try:
            plan = await self._assignment.plan_rebuild(partition, mode)
        except (RebuildRefused, Halted) as error:
            raise Problem(409, "not_rebuilt", "Not rebuilt", str(error)) from None
        except Lost as error:
            raise not_ready(str(error)) from None
        return json_response(rebuild_document(partition, plan))

    def _parse_partition(self, request: Request) -> int:
        partition = parse_number("partition", request.match_info["partition"])
        if partition >= self._settings.partitions:
            detail = f"there is no partition {partition}: the last one is {self._settings.partitions - 1}"
            raise Problem(404, "unknown_partition", "Unknown partition", detail)
        return partition

    async def _reopen_halted(self, request: Request, decide: "Decide") -> Response:
        caller = self._tokens.require_pipeline_operator(request.headers.get("Authorization"))
        partition = self._parse_partition(request)
        owner = self._assignment.owners.get(partition)
        if owner is None:
            return await self._others.pass_on(request, partition)
        body = await parse_object(request)
        if (fault := owner.halted) is None:
            raise _not_halted(owner)
        decision = decide(partition, fault, body, caller.principal)
        self._others.require_membership()  # otherwise it would fence the new owner
        _log.warning(
            "partition %(partition)d is opened again because %(principal)s asked for it; it was halted: %(error)s",
            partition=partition,
            principal=caller.principal,
            **error_fields(fault),
        )
        self._assignment.reopen_partition(partition, decision)
        owner = self._assignment.owners[partition]
        await owner.wait_until_committed(decision.last_offset if isinstance(decision, RecordSkip) else -1, _OPEN_S)
        return json_response(self._document(owner))

    async def _add_others(self, request: Request, found: dict[int, dict[str, Any]]) -> None:
        """Add the partitions of the other workers, and those that no worker answers for."""
        missing = [partition for partition in range(self._settings.partitions) if partition not in found]
        urls = {partition: url for partition in missing if (url := self._others.owner_url(partition)) is not None}
        answers = await self._others.ask_all(request, set(urls.values()))
        known = {url: _documents_by_partition(answer) for url, answer in answers.items()}
        for partition in missing:
            url = urls.get(partition)
            document = None if url is None else known[url].get(partition)
            found[partition] = document or _absent_document(partition, url, None if url is None else answers[url])

    def _document(self, owner: PartitionOwner) -> dict[str, Any]:
        return partition_document(owner, self._settings)


def _not_halted(owner: PartitionOwner) -> Problem:
    detail = f"partition {owner.partition} is {state_of_owner(owner)}: only a halted partition is opened again"
    return Problem(409, "not_halted", "Not halted", detail)


# Gets a partition, why it is halted, the request's body, and who asks. Raises `Problem`.
Decide = Callable[[int, Halted, Mapping[str, Any], str], OperatorDecision | None]


def _decide_nothing(_partition: int, _fault: Halted, _body: Mapping[str, Any], _principal: str) -> None:
    return None


def _decide_gap(partition: int, fault: Halted, body: Mapping[str, Any], principal: str) -> OperatorDecision:
    if fault.reason != "log_gap":
        detail = f"partition {partition} is halted by {fault.reason}: only a log_gap can be accepted"
        raise Problem(409, "no_gap", "No gap", detail)
    return GapAcceptance(_parse_reason(body), principal)


def _decide_truncation(partition: int, fault: Halted, body: Mapping[str, Any], principal: str) -> OperatorDecision:
    if fault.reason != "log_truncated":
        detail = f"partition {partition} is halted by {fault.reason}: only a log_truncated can be accepted"
        raise Problem(409, "no_truncation", "No truncation", detail)
    return TruncationAcceptance(_parse_reason(body), principal)


def _decide_skip(partition: int, fault: Halted, body: Mapping[str, Any], principal: str) -> OperatorDecision:
    reason, first, last = _parse_reason(body), _parse_offset("offset", body.get("offset")), body.get("to")
    last = first if last is None else _parse_offset("to", last)
    if fault.offset is None:
        detail = f"partition {partition} is halted by {fault.reason}: not a record that can be skipped"
        raise Problem(409, "not_skippable", "Not skippable", detail)
    if first != fault.offset:
        detail = f"partition {partition} is halted at offset {fault.offset}, not at {first}: only that can be skipped"
        raise Problem(409, "wrong_offset", "Wrong offset", detail)
    if last < first:
        raise Problem(400, "invalid_value", "Bad to", f"to={last} is below the offset {first}")
    return RecordSkip(first, last, reason, principal, fault)


def _decide_rebuild(partition: int, fault: Halted, body: Mapping[str, Any], principal: str) -> OperatorDecision:
    mode, reason = _parse_mode(body), _parse_reason(body)
    _require_rebuildable(partition, fault, mode)
    return Rebuild(mode, reason, principal)


def _parse_mode(body: Mapping[str, Any]) -> RebuildMode:
    mode = body.get("mode", "refold")
    if not isinstance(mode, str) or mode not in EVENT_TYPES:
        raise Problem(400, "invalid_value", "Bad mode", f"mode={mode!r}: use {', '.join(EVENT_TYPES)}")
    return cast(RebuildMode, mode)


def _require_rebuildable(partition: int, fault: Halted, mode: RebuildMode) -> None:
    try:
        require_rebuildable(partition, fault, mode)
    except RebuildRefused as refusal:
        raise Problem(409, "not_rebuildable", "Not rebuildable", str(refusal)) from None


def require_repairable(owner: PartitionOwner, wall_s: float) -> None:
    """Raise `Problem` unless the clock of an owner's partition may be set: 409, or 503 for now.

    `wall_s`: this worker's clock, in seconds since the epoch.
    """
    partition, position, fault = owner.partition, owner.position, owner.halted
    if fault is None and not owner.is_open:
        raise not_ready(f"partition {partition} is not open yet")
    ahead_s = position.clock_ms / 1_000 - wall_s
    if fault is not None and fault.reason != "clock_ahead":
        detail = f"partition {partition} is halted by {fault.reason}, not by clock_ahead"
        raise Problem(409, "no_leap", "No leap", detail)
    if fault is None and ahead_s <= _AHEAD_S_MIN:
        detail = (
            f"the clock of partition {partition} is not a second ahead of this worker's ({ahead_s:+,.1f} s): "
            "it needs no repair"
        )
        raise Problem(409, "no_leap", "No leap", detail)
    if not owner.state.may_repair_clock:
        raise not_ready(f"partition {partition} is between the timers of one record, or its clock was just set")


def _parse_reason(body: Mapping[str, Any]) -> str:
    reason = body.get("reason")
    if not isinstance(reason, str) or not 0 < len(reason.strip()) <= REASON_CHARS_MAX:
        detail = f"say why, in the field `reason`: a text of 1 to {REASON_CHARS_MAX} characters"
        raise Problem(400, "invalid_value", "Bad reason", detail)
    return reason.strip()


def _parse_offset(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 63:
        raise Problem(400, "invalid_value", f"Bad {name}", f"{name}={value!r}: use a whole number of 0 or more")
    return value


def partition_document(owner: PartitionOwner, settings: ProcessorSettings) -> dict[str, Any]:
    """Return the JSON document of a partition that this worker owns.

    `state` is open, opening or halted; only a halted partition has `reason`, `detail` and
    `halted_at_ms` (wall clock, ms since the epoch). Position and live rows are null as long as the
    changelog is not read. `clock_ms` is the log clock of an open partition. `decisions` are the
    last eight about it, oldest first.
    """
    halted, position = owner.halted, owner.position
    is_recovered = has_known_position(owner)
    return {
        **_UNKNOWN,
        "partition": owner.partition,
        "state": state_of_owner(owner),
        "instance": settings.worker_name,
        "url": settings.api_url,
        "reason": halted and halted.reason,
        "detail": halted and halted.detail,
        "halted_at_ms": owner.halted_at_ms,
        "next_offset": position.next_offset if is_recovered else None,
        "batch_number": owner.state.position.batch_number if is_recovered else None,
        "live_rows": owner.state.live if owner.is_open else None,
        "clock_ms": position.clock_ms or None if owner.is_open else None,
        "decisions": [decision._asdict() for decision in position.decisions] if is_recovered else None,
    }


def rebuild_document(partition: int, plan: RebuildPlan) -> dict[str, Any]:
    """Return the JSON document of what a rebuild would change.

    `judged_again` counts audit records of events from `next_offset` on, which a torn transaction
    left: the events are judged again, and their records get the same numbers.
    """
    return {
        "partition": partition,
        "mode": plan.mode,
        "rows_found": plan.found_rows,
        "rows_added": len(plan.added),
        "rows_changed": len(plan.changed),
        "rows_removed": len(plan.removed),
        "former_offset": plan.former.next_offset,
        "next_offset": plan.position.next_offset,
        "batch_number": plan.position.batch_number,
        "judged_again": plan.audited_beyond,
    }


def has_known_position(owner: PartitionOwner) -> bool:
    """Return whether the owner knows where its partition is.

    If the changelog was not read to its end, the position may be an old one. Before it is read,
    none is known: a store that cannot be opened halts its partition earlier.
    """
    unknown = "changelog_unreadable", "position_lost", "transaction_open"
    return owner.is_open or (owner.halted is not None and owner.halted.reason not in unknown and owner.began_reading)


def state_of_owner(owner: PartitionOwner) -> str:
    """Return `halted`, `open` or `opening`: also while an operator's decision is carried out."""
    is_open = owner.is_open and owner.decision_left is None
    return "halted" if owner.halted else "open" if is_open else "opening"


def _documents_by_partition(answer: Any) -> dict[int, dict[str, Any]]:
    """Return the documents in another worker's answer; none if it is of another form."""
    listed = answer.get("partitions") if isinstance(answer, dict) else None
    documents = [document for document in listed or () if isinstance(document, dict)]
    # A worker of another release may know more of a partition, or less.
    return {d["partition"]: {name: d.get(name) for name in _UNKNOWN} for d in documents if "partition" in d}


def _absent_document(partition: int, url: str | None, answer: Any) -> dict[str, Any]:
    if isinstance(answer, NoAnswer):
        return {**_UNKNOWN, "partition": partition, "state": "unreachable", "url": url, "detail": str(answer)}
    detail = "no worker owns it; if that lasts, start a processor: sessionary serve processor"
    return {**_UNKNOWN, "partition": partition, "state": "unassigned", "detail": detail}
