"""The operators' pages of the rules: which are in force, and the activation of newer ones.

    GET   /v1/rules    of every partition of the group; which rules each of its workers knows
    POST  /v1/rules    let newer rules begin, or change a setting of those in force, everywhere

Both need the role operator. A worker answers for its own partitions and asks all other workers of
the group, also those without a partition: any of them may own one in a moment.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, NamedTuple

from aiohttp.web import Request, Response

from sessionary.schemas.kafka.clients import AdminConnection
from sessionary.schemas.limits import FINISHED_RUN_DAYS_MAX, RESUME_MS_MAX
from sessionary.schemas.records import Position
from sessionary.schemas.rules import known_rules, newest_known
from sessionary.schemas.settings import KafkaSettings
from sessionary.schemas.settings.librdkafka_options import option_variable
from sessionary.schemas.telemetry.role_logs import error_fields, role_logger
from sessionary.stream_processors.api.operators.partitions import has_known_position, state_of_owner
from sessionary.stream_processors.api.problems import Problem, json_response, not_ready
from sessionary.stream_processors.api.routing import NoAnswer, OtherWorkers, was_passed_on
from sessionary.stream_processors.api.tokens import TokenStore
from sessionary.stream_processors.core_build import core_build
from sessionary.stream_processors.errors import Lost
from sessionary.stream_processors.group_members import list_members
from sessionary.stream_processors.rules_change import RulesRequest, is_in_force, last_decided
from sessionary.stream_processors.runtime.assignment import Assignment
from sessionary.stream_processors.runtime.partition_owner import PartitionOwner
from sessionary.stream_processors.settings import ProcessorSettings, quotas_group
from sessionary.stream_processors.store.stores import free_bytes

# The facts that a worker reports: release, build of the rules, clock, and the room on its disk.


def _installed_release() -> str | None:
    try:
        return version("sessionary")
    except PackageNotFoundError:  # it runs from a folder of sources
        return None


# The limits of a record: of what is written, and of what is read.
_SIZES: Final = ("message.max.bytes", "fetch.message.max.bytes", "max.partition.fetch.bytes", "fetch.max.bytes")


# As it was when the process started: an upgrade of the package does not change what runs.
_RELEASE: Final = _installed_release()


def worker_facts(settings: ProcessorSettings) -> dict[str, Any]:
    """Return release, build, clock (ms since the epoch), state folder, free bytes.

    The last two are null if rows are kept in memory, or in a temporary folder. Asks the operating
    system for the disk, which takes microseconds.
    """
    folder = settings.state_dir if settings.store == "rocksdb" else None
    return {
        "release": _RELEASE,
        "core": core_build(),
        "time_ms": time.time_ns() // 1_000_000,
        "state_dir": None if folder is None else str(folder),
        "state_free_bytes": free_bytes(folder),
    }


def compared_settings(settings: ProcessorSettings, tokens: TokenStore) -> dict[str, str | int | float | None]:
    """Return what must be the same in all workers of a group, by variable; no secret is in it.

    Tokens and signing keys are named by a fingerprint.
    """
    return {
        "SESSIONARY_API_TOKENS": tokens.fingerprint(),
        "SESSIONARY_SIGNING_KEYS": settings.keys.fingerprint(),
        "SESSIONARY_OUTAGE_MS": settings.outage_ms,
        "SESSIONARY_OUTAGE_GRACE_MS": settings.outage_grace_ms,
        "SESSIONARY_CLOCK_AHEAD_S_MAX": settings.clock_ahead_s_max,
        "SESSIONARY_FAUST_AGENTS": settings.faust_agents,
        **{option_variable(name): settings.librdkafka.get(name) for name in _SIZES},
    }


# How many workers of the role quotas run: the members of their group, by Kafka.


def count_quota_workers(settings: KafkaSettings) -> int:
    """Return the number of members. One that was killed counts until its session timeout.

    Blocks for up to 4 s. Raises `Lost` if Kafka does not answer.
    """
    connection = AdminConnection(settings)
    try:
        return len(list_members(connection, quotas_group(settings.topic_prefix)))
    finally:
        connection.end_client()


_log = role_logger(__name__)
_BEGIN_S = 5.0
_PARTITION_FIELDS = (
    *("partition", "state", "instance", "rules", "finished_run_days", "quotas", "session_quotas", "resume_ms"),
    *("token_quotas", "announced", "principal", "detail"),
)
_WORKER_FIELDS = (
    *("instance", "url", "newest", "detail", "release", "core", "time_ms", "state_dir", "state_free_bytes"),
    "settings",
)


class _Listing(NamedTuple):
    """The workers' answers: a document per partition, and one per worker.

    `quota_workers`: how many workers of the role quotas run; None if that is not known.
    """

    partitions: dict[int, dict[str, Any]]
    workers: list[dict[str, Any]]
    quota_workers: int | None = None

    def to_document(self) -> dict[str, Any]:
        return {
            "quota_workers": self.quota_workers,
            "partitions": [self.partitions[partition] for partition in sorted(self.partitions)],
            "workers": sorted(self.workers, key=lambda worker: (worker["url"] or "", worker["instance"] or "")),
        }


class _Wanted(NamedTuple):
    """The rules and settings that a request asks for."""

    version: int
    finished_run_days: int | None  # None: as it is in each partition
    quotas: bool | None  # the same
    session_quotas: bool | None  # the same
    token_quotas: bool | None  # the same
    resume_ms: int | None  # the same
    principal: str

    @property
    def begins_quotas(self) -> bool:
        """Whether quotas are to be in force that need a worker of that role."""
        return bool(self.quotas or self.session_quotas or self.token_quotas)

    def begun_in(self, position: Position) -> RulesRequest:
        """Return the request to the owner of a partition at `position`."""
        decided = last_decided(position)
        days = self.finished_run_days or decided.finished_run_days
        quotas = decided.quotas if self.quotas is None else self.quotas
        of_sessions = decided.session_quotas if self.session_quotas is None else self.session_quotas
        of_tokens = decided.token_quotas if self.token_quotas is None else self.token_quotas
        resume_ms = self.resume_ms or decided.resume_ms
        rules = known_rules()[self.version].rules._replace(
            finished_run_days=days, quotas=quotas, session_quotas=of_sessions
        )
        return RulesRequest(rules._replace(token_quotas=of_tokens, resume_ms=resume_ms), self.principal)


class RulesApi:
    """Answers the requests of one worker about the rules."""

    def __init__(
        self,
        settings: ProcessorSettings,
        tokens: TokenStore,
        assignment: Assignment,
        others: OtherWorkers,
        count_quotas: Callable[[KafkaSettings], int] = count_quota_workers,
    ) -> None:
        """`count_quotas`: see `count_quota_workers`."""
        self._settings = settings
        self._tokens = tokens
        self._assignment = assignment
        self._others = others
        self._count_quotas = count_quotas

    async def list_rules(self, request: Request) -> Response:
        """Answer `GET /v1/rules` with a `RulesList`. Raises `Problem`.

        A worker that asks for another one gets only what concerns this worker. Waits at most 4 s
        for the others, and for Kafka.
        """
        self._tokens.require_pipeline_operator(request.headers.get("Authorization"))
        own = self._own_listing()
        if not was_passed_on(request):
            answers, quota_workers = await asyncio.gather(
                self._others.ask_all(request, self._others.urls()), asyncio.to_thread(self._known_quota_workers)
            )
            own = self._joined(own, answers)._replace(quota_workers=quota_workers)
        return json_response(own.to_document())

    async def activate_rules(self, request: Request) -> Response:
        """Answer `POST /v1/rules` with a `RulesList`: as it is after at most 5 s.

        Nothing is announced unless every worker of the group knows the rules and every partition is
        open; and quotas are turned on only if a worker of that role runs. Raises `Problem`: 409
        then, 503 if the group may have changed, or Kafka does not answer about that role.
        """
        caller = self._tokens.require_pipeline_operator(request.headers.get("Authorization"))
        wanted = await _parse_wanted(request, caller.principal)
        self._others.require_membership()
        if was_passed_on(request):
            await self._announce(wanted)
            return json_response(self._own_listing().to_document())
        urls = self._others.urls()
        found = self._joined(self._own_listing(), await self._others.ask_all(request, urls))
        _require_support(wanted.version, found.workers)
        _require_open_partitions(wanted.version, found.partitions.values())
        quota_workers = await asyncio.to_thread(self._require_quota_worker) if wanted.begins_quotas else None
        _log.warning(
            "rules %(rules)d are activated because %(principal)s asked for it",
            rules=wanted.version,
            principal=wanted.principal,
        )
        body = json.dumps({name: value for name, value in wanted._asdict().items() if name != "principal"}).encode()
        answers, _ = await asyncio.gather(
            self._others.ask_all(request, urls, method="POST", body=body, timeout_s=2 * _BEGIN_S),
            self._announce(wanted),
        )
        joined = self._joined(self._own_listing(), answers)
        return json_response(joined._replace(quota_workers=quota_workers).to_document())

    def _known_quota_workers(self) -> int | None:
        try:
            return self._count_quotas(self._settings)
        except Lost as error:
            _log.warning("the workers of quotas are not known: %(error)s", **error_fields(error))
            return None

    def _require_quota_worker(self) -> int:
        """Return how many workers of the role quotas run; raise `Problem` if there is none."""
        try:
            found = self._count_quotas(self._settings)
        except Lost as error:
            raise not_ready(str(error)) from None
        if not found:
            detail = "no worker of the role quotas runs, so all that asks would wait: start one first"
            raise Problem(409, "no_quota_worker", "No worker of quotas", f"{detail} (sessionary serve quotas)")
        return found

    async def _announce(self, wanted: _Wanted) -> None:
        """Have this worker's open partitions announce rules; wait up to 5 s until they begin."""
        waits: list[Awaitable[bool]] = []
        for owner in self._assignment.owners.values():
            if owner.is_open:
                request = wanted.begun_in(owner.position)
                owner.request_rules(request)
                waits.append(owner.wait_until(partial(is_in_force, rules=request.rules), _BEGIN_S))
        await asyncio.gather(*waits)

    def _own_listing(self) -> _Listing:
        settings = self._settings
        worker = {
            "instance": settings.worker_name,
            "url": settings.api_url,
            "newest": newest_known().version,
            "detail": None,
            **worker_facts(settings),
            "settings": compared_settings(settings, self._tokens),
        }
        partitions = {
            partition: _partition_document(owner, settings) for partition, owner in self._assignment.owners.items()
        }
        return _Listing(partitions, [worker])

    def _joined(self, own: _Listing, answers: Mapping[str, Any]) -> _Listing:
        """Add the other workers' answers, and the partitions without an answer."""
        partitions, workers = dict(own.partitions), list(own.workers)
        for url, answer in answers.items():
            theirs = _documents(answer, "workers", _WORKER_FIELDS)
            workers += theirs or [{**dict.fromkeys(_WORKER_FIELDS), "url": url, "detail": _no_answer_text(answer)}]
            for document in _documents(answer, "partitions", _PARTITION_FIELDS):
                partitions.setdefault(document["partition"], document)
        for partition in range(self._settings.partitions):
            if partition not in partitions:
                owner_url = self._others.owner_url(partition)
                partitions[partition] = _absent_document(partition, owner_url)
        return _Listing(partitions, workers)


def _partition_document(owner: PartitionOwner, settings: ProcessorSettings) -> dict[str, Any]:
    halted, position = owner.halted, owner.state.position
    is_known = has_known_position(owner)
    announced = position.announced if is_known else None
    return {
        "partition": owner.partition,
        "state": state_of_owner(owner),
        "instance": settings.worker_name,
        "rules": position.rules.version if is_known else None,
        "finished_run_days": position.rules.finished_run_days if is_known else None,
        "quotas": position.rules.quotas if is_known else None,
        "session_quotas": position.rules.session_quotas if is_known else None,
        "resume_ms": position.rules.resume_ms if is_known else None,
        "token_quotas": position.rules.token_quotas if is_known else None,
        "announced": announced and announced.version,
        "principal": announced and announced.principal,
        "detail": halted and str(halted),
    }


def _absent_document(partition: int, url: str | None) -> dict[str, Any]:
    state, detail = ("unassigned", None) if url is None else ("unreachable", f"its owner at {url} does not answer")
    return {**dict.fromkeys(_PARTITION_FIELDS), "partition": partition, "state": state, "detail": detail}


def _documents(answer: Any, name: str, fields: Iterable[str]) -> list[dict[str, Any]]:
    """Return the documents in another worker's answer; none if it is of another form."""
    listed = answer.get(name) if isinstance(answer, dict) else None
    return [{field: found.get(field) for field in fields} for found in listed or () if isinstance(found, dict)]


def _no_answer_text(answer: Any) -> str:
    if isinstance(answer, NoAnswer) and answer.status == 401:
        return "it does not know this token: its SESSIONARY_API_TOKENS, or file of them, differs"
    return str(answer) if isinstance(answer, NoAnswer) else "the worker's answer is of another form"


async def _parse_wanted(request: Request, principal: str) -> _Wanted:
    """Return the request in the body. Raises `Problem`: 400 or, if the rules are unknown, 409."""
    version = days = resume_ms = None
    quotas: dict[str, Any] = {}
    try:
        body = json.loads(await request.read())
        version, days, resume_ms = body["version"], body.get("finished_run_days"), body.get("resume_ms")
        quotas = {name: body.get(name) for name in ("quotas", "session_quotas", "token_quotas")}
    except (ValueError, TypeError, KeyError, AttributeError):
        pass
    if type(version) is not int:
        raise Problem(400, "invalid_value", "Bad body", 'the body must be JSON such as {"version": 2}')
    if days is not None and not (type(days) is int and 1 <= days <= FINISHED_RUN_DAYS_MAX):
        detail = f"finished_run_days is a number from 1 to {FINISHED_RUN_DAYS_MAX}, not {days!r}"
        raise Problem(400, "invalid_value", "Bad number of days", detail)
    if resume_ms is not None and not (type(resume_ms) is int and 1 <= resume_ms <= RESUME_MS_MAX):
        detail = f"resume_ms is a number from 1 to {RESUME_MS_MAX}, not {resume_ms!r}"
        raise Problem(400, "invalid_value", "Bad time", detail)
    for name, value in quotas.items():
        if value is not None and type(value) is not bool:
            raise Problem(400, "invalid_value", "Bad setting", f"{name} is true or false, not {value!r}")
    if version not in known_rules():
        known = ", ".join(map(str, known_rules()))
        detail = f"this worker knows rules {known}, not {version}: upgrade all workers first"
        raise Problem(409, "unknown_rules", "Unknown rules", detail)
    return _Wanted(version, days, **quotas, resume_ms=resume_ms, principal=principal)


def _require_support(version: int, workers: Iterable[Mapping[str, Any]]) -> None:
    """Raise `Problem` 409 unless each worker is known to know the rules."""
    lacking = [
        f"{worker['instance'] or worker['url']} ({worker['detail'] or 'it knows rules {newest}'.format_map(worker)})"
        for worker in workers
        if not isinstance(worker["newest"], int) or worker["newest"] < version
    ]
    if lacking:
        detail = f"not every worker is known to know rules {version}: {'; '.join(lacking)}. Upgrade or stop these"
        raise Problem(409, "unsupported_rules", "Unsupported rules", detail)


def _require_open_partitions(version: int, partitions: Iterable[Mapping[str, Any]]) -> None:
    """Raise `Problem` 409 unless each partition is open, and judged by no later rules."""
    closed = [
        f"partition {found['partition']} is {found['state']}" + (f": {found['detail']}" if found["detail"] else "")
        for found in partitions
        if found["state"] != "open"
    ]
    if closed:
        detail = f"rules begin in all partitions or in none, and not all are open: {'; '.join(closed)}"
        raise Problem(409, "partitions_not_open", "Partitions not open", detail)
    if any((found["rules"] or 0) > version for found in partitions):
        detail = f"there is no way back to rules {version}: later ones are in force"
        raise Problem(409, "later_rules", "Later rules in force", detail)
