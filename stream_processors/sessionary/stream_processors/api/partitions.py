"""The operators' pages: every partition's state, and a new start for a halted one.

    GET  /v1/partitions                     all partitions of the group
    POST /v1/partitions/{partition}/retry   open a halted partition again

Both need the role operator. A worker answers for its own partitions and asks the other owners.
"""

import logging
from collections.abc import Mapping
from typing import Any

from aiohttp.web import Request, Response

from sessionary.stream_processors.api.problems import Problem, json_response, parse_number
from sessionary.stream_processors.api.routing import NoAnswer, OtherWorkers, was_passed_on
from sessionary.stream_processors.api.token_store import TokenStore
from sessionary.stream_processors.runtime.assignment import Assignment
from sessionary.stream_processors.runtime.partition_owner import PartitionOwner
from sessionary.stream_processors.settings import ProcessorSettings

_log = logging.getLogger(__name__)
_OPEN_S = 5.0
# What is not known of a partition is null.
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
        self._tokens.require_role(request.headers.get("Authorization"), "operator")
        found = {partition: self._document(owner) for partition, owner in self._assignment.owners.items()}
        if not was_passed_on(request):
            await self._add_others(request, found)
        return json_response({"partitions": [found[partition] for partition in sorted(found)]})

    async def retry_partition(self, request: Request) -> Response:
        """Answer `POST /v1/partitions/{partition}/retry` with `partition_document`.

        Opens a halted partition again, and waits up to 5 s until it is open or halted. Raises
        `Problem`: 409 if it is not halted, 503 if another worker may own it by now.
        """
        caller = self._tokens.require_role(request.headers.get("Authorization"), "operator")
        partition = parse_number("partition", request.match_info["partition"])
        if partition >= self._settings.partitions:
            detail = f"there is no partition {partition}: the last one is {self._settings.partitions - 1}"
            raise Problem(404, "unknown_partition", "Unknown partition", detail)
        owner = self._assignment.owners.get(partition)
        if owner is None:
            return await self._others.pass_on(request, partition)
        if owner.halted is None:
            detail = f"partition {partition} is {state_of_owner(owner)}: only a halted partition can be retried"
            raise Problem(409, "not_halted", "Not halted", detail)
        self._others.require_membership()  # otherwise it would fence the new owner
        _log.warning(
            "partition %d is opened again because %s asked for it; it was halted: %s",
            partition,
            caller.principal,
            owner.halted,
        )
        self._assignment.reopen_partition(partition)
        owner = self._assignment.owners[partition]
        await owner.wait_until_committed(-1, _OPEN_S)
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


def partition_document(owner: PartitionOwner, settings: ProcessorSettings) -> dict[str, Any]:
    """Return the JSON document of a partition that this worker owns.

    `state` is open, opening or halted; only a halted partition has `reason`, `detail` and
    `halted_at_ms` (wall clock, ms since the epoch). Position and live rows are null as long as the
    changelog is not read.
    """
    halted, position = owner.halted, owner.position
    # Of a changelog that was not read to its end, the position may be an old one.
    is_recovered = owner.is_open or (halted is not None and halted.reason != "changelog_unreadable")
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
    }


def state_of_owner(owner: PartitionOwner) -> str:
    """Return `halted`, `open` or `opening`."""
    return "halted" if owner.halted else "open" if owner.is_open else "opening"


def _documents_by_partition(answer: Any) -> dict[int, dict[str, Any]]:
    """Return the documents in another worker's answer; none if it is of another form."""
    listed = answer.get("partitions") if isinstance(answer, dict) else None
    documents = [document for document in listed or () if isinstance(document, dict)]
    # A worker of another release may know more of a partition, or less.
    return {d["partition"]: {name: d.get(name) for name in _UNKNOWN} for d in documents if "partition" in d}


def _absent_document(partition: int, url: str | None, answer: Any) -> dict[str, Any]:
    if isinstance(answer, NoAnswer):
        return {**_UNKNOWN, "partition": partition, "state": "unreachable", "url": url, "detail": str(answer)}
    detail = "no worker owns it; if that lasts, start a processor: sessionary processor"
    return {**_UNKNOWN, "partition": partition, "state": "unassigned", "detail": detail}


__all__ = ["PartitionApi", "partition_document", "state_of_owner"]
