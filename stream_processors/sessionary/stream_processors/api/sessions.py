"""The control API: one session's committed state, read-your-writes, and the worker's health.

    GET /v1/sessions/{session_id}?after=<partition>:<offset>&wait_ms=<ms>     bearer token → tenant
    GET /v1/sessions/{session_id}/runs/…       its runs, steps and tool calls: see `runs`
    GET /v1/sessions/{session_id}/execution    GET …/artifacts    see `runs`
    GET /v1/sessions/{session_id}/conversation its last turns: see `conversations`
    GET /v1/sessions/{session_id}/at           its state at a point of its history: see `past`
    GET /v1/sessions/{session_id}/follow       its state, and each change of it: see `following`
    GET /v1/tasks/{task_id}                    a task by its id alone: see `runs`
    GET /v1/sessions   GET /v1/runs            those of a tenant: see `lists`
    POST /v1/sessions/poll     many sessions at once: see `session_poll`
    GET /healthz   GET /readyz   GET /metrics   GET /openapi.json

These pages only read. A request for another worker's partition is passed on to that worker; the
group's assignment holds its URL.
"""

import time
from collections.abc import Callable, Mapping

from aiohttp.web import Request, Response

from sessionary.schemas.kafka.log_progress import StalledPartition
from sessionary.schemas.telemetry.role_logs import role_logger
from sessionary.stream_processors.api.following import FollowPage, OpenStreams
from sessionary.stream_processors.api.lists import ListPages
from sessionary.stream_processors.api.openapi import DOCUMENT
from sessionary.stream_processors.api.past import PastPage, PastStates
from sessionary.stream_processors.api.problems import Problem, json_response, not_ready
from sessionary.stream_processors.api.routing import OtherWorkers
from sessionary.stream_processors.api.runs import (
    ArtifactPages,
    CallPages,
    CheckpointPages,
    ExecutionPage,
    RunPages,
    StepPages,
    TaskPages,
)
from sessionary.stream_processors.api.session_pages import AgentPages, MessagePages
from sessionary.stream_processors.api.session_poll import SessionPolls
from sessionary.stream_processors.api.session_questions import (
    AskEnd,
    SessionQuestions,
    require_session,
    session_document,
)
from sessionary.stream_processors.api.tokens import TokenStore
from sessionary.stream_processors.core.families import SESSION_JUDGE
from sessionary.stream_processors.core.trail import Access
from sessionary.stream_processors.metrics import Metrics
from sessionary.stream_processors.runtime.assignment import Assignment
from sessionary.stream_processors.runtime.partition_owner import PartitionOwner
from sessionary.stream_processors.runtime.past_log import PastReader
from sessionary.stream_processors.settings import ProcessorSettings

# Counts of callers who ask for ids that their tenant does not have.
#
# An id that does not exist and an id of another tenant have the same answer. A caller who tries
# many ids shows here: one log line and one audit record a minute for each principal and worker,
# with the number of such requests. One of the worker's open partitions writes the record, whichever
# partition the requests were for.


_log = role_logger(__name__)
_LINE_EVERY_S = 60.0
_WRONG_TENANT = "wrong_tenant"
_NO_ID_OF_TENANT = "unknown_partition"  # the number of a partition is no secret
_DETAIL_MAX = 256  # characters; the caller chooses them


class UnknownIds:
    """Counts the requests for unknown ids by the principals of their tokens."""

    def __init__(self, tokens: TokenStore, assignment: Assignment, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: monotonic, in seconds."""
        self._tokens = tokens
        self._assignment = assignment
        self._clock = clock
        self._line_s: dict[str, float] = {}  # of the last line
        self._requests: dict[str, int] = {}  # since then

    def note(self, authorization: str | None, problem: Problem) -> None:
        """Take a request's problem, and its `Authorization` header.

        Only a problem about the unknown or foreign id of a session, or of a part, is counted.
        """
        is_unknown = problem.status == 404 and problem.reason.startswith("unknown_")
        if not (is_unknown or problem.reason == _WRONG_TENANT) or problem.reason == _NO_ID_OF_TENANT:
            return
        caller = self._tokens.find_caller(authorization)
        if caller is None:
            return
        principal = caller.principal
        requests = self._requests.get(principal, 0) + 1
        now_s, line_s = self._clock(), self._line_s.get(principal)
        if line_s is not None and now_s - line_s < _LINE_EVERY_S:
            self._requests[principal] = requests
            return
        self._line_s[principal], self._requests[principal] = now_s, 0
        detail = problem.detail[:_DETAIL_MAX]
        _log.warning(
            "principal %(principal)s asked for what its tenant does not have, requests since the last such line: "
            "%(requests)d; the last one: %(reason)s: %(detail)s",
            principal=principal,
            requests=requests,
            reason=problem.reason,
            detail=detail,
        )
        text = f"requests since the last such record: {requests}; the last one: {detail}"
        self._audit(Access(caller.tenant or "", principal, problem.reason, text))

    def _audit(self, access: Access) -> None:
        """Give a record to the first open partition; without one, only the log line is written."""
        for owner in self._assignment.owners.values():
            if owner.is_readable:
                owner.accesses.append(access)
                return


class ControlApi:
    """Answers the requests of one worker. `polls` and `lists` answer those for many sessions;
    `runs`, `steps`, `calls`, `artifacts` and `execution` those for runs and their parts; `tasks`
    those for tasks; `messages` those for conversations; `agents` those for agents; `past`
    those for states at a point; `following` those of followers. `unknown_ids` is notified of every
    problem.

    `ask_end` returns the high watermark of a partition of the events, or raises `Lost`.
    `alive` returns False once the worker is ending. `stalled` returns the open partitions that have
    stood still for long although their log grows. `hung` returns which part of the worker hangs, so
    that only a new process helps; None: none does.
    """

    def __init__(
        self,
        settings: ProcessorSettings,
        tokens: TokenStore,
        assignment: Assignment,
        metrics: Metrics,
        others: OtherWorkers,
        ask_end: AskEnd,
        alive: Callable[[], bool],
        stalled: Callable[[], Mapping[int, StalledPartition]],
        hung: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._settings = settings
        self._tokens = tokens
        self._assignment = assignment
        self._metrics = metrics
        self._others = others
        self._alive = alive
        self._stalled = stalled
        self._hung = hung
        self._has_started = False
        self._questions = SessionQuestions(settings, tokens, assignment, others, ask_end)
        self.unknown_ids = UnknownIds(tokens, assignment)
        self.polls = SessionPolls(settings, tokens, assignment, others)
        self.lists = ListPages(settings, tokens, assignment, others)
        self.runs = RunPages(self._questions)
        self.steps = StepPages(self._questions)
        self.calls = CallPages(self._questions)
        self.artifacts = ArtifactPages(self._questions)
        self.checkpoints = CheckpointPages(self._questions)
        self.execution = ExecutionPage(self._questions)
        self.tasks = TaskPages(self._questions)
        self.messages = MessagePages(self._questions)
        self.agents = AgentPages(self._questions)
        told = PastStates(settings.api_past_states_max, settings.api_past_states_seconds)
        self.past = PastPage(self._questions, metrics, told, PastReader(settings, SESSION_JUDGE).state_at)
        streams = OpenStreams(settings.api_followers_max, metrics)
        self.following = FollowPage(self._questions, tokens, others, streams)

    async def session(self, request: Request) -> Response:
        """Answer `GET /v1/sessions/{session_id}` with `session_document`. Raises `Problem`.

        Waits up to `wait_ms` until the record at `after` is folded, or all that is there now.
        """
        asked = await self._questions.ask_owner(request)
        if isinstance(asked, Response):
            return asked
        return json_response(session_document(require_session(asked), asked))

    async def healthz(self, request: Request) -> Response:
        """Answer 200, or 503 once the worker is asked to end, and while a part of it hangs.

        If its event loop hangs, there is no answer.
        """
        fault = self._hung() if self._alive() else "the worker is ending"
        return json_response({"status": "alive"}) if fault is None else not_ready(fault).to_response()

    async def readyz(self, request: Request) -> Response:
        """Answer 200 if the worker has started, is in its group, and its open partitions keep up.

        It has started once each partition that it owned was open or halted. A partition that is
        halted, or that opens later, says nothing of the others. The body names their states.
        """
        stalled, owners = self._stalled(), self._assignment.owners
        partitions = {
            str(partition): _partition_state(owner, stalled.get(partition))
            for partition, owner in sorted(owners.items())
        }
        keeps_up = not any(partition in stalled and owner.is_open for partition, owner in owners.items())
        ready = self._alive() and self._others.has_heard() and self._is_started() and keeps_up
        return json_response({"ready": ready, "partitions": partitions}, 200 if ready else 503)

    async def metrics(self, request: Request) -> Response:
        """Answer with the metrics in Prometheus' text format."""
        return Response(
            body=self._metrics.exposition(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        )

    async def openapi(self, request: Request) -> Response:
        """Answer with this API's OpenAPI document."""
        return json_response(DOCUMENT)

    def _is_started(self) -> bool:
        self._has_started = self._has_started or self._assignment.is_ready
        return self._has_started


def _partition_state(owner: PartitionOwner, stalled: StalledPartition | None) -> str:
    if owner.halted:
        return f"halted: {owner.halted}"
    if not owner.is_readable:
        return "opening"
    return "open" if stalled is None else f"stands {stalled}"
