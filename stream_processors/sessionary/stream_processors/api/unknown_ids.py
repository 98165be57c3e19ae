"""What is kept of callers who ask for ids that their tenant does not have.

An id that does not exist and one of another tenant have the same answer. Who tries many is seen
here: one log line and one audit record a minute for each principal and worker, with the number of
such requests. The record is written by one of the worker's open partitions, whichever was asked.
"""

import time
from collections.abc import Callable

from sessionary.schemas.telemetry.role_logs import role_logger
from sessionary.stream_processors.api.problems import Problem
from sessionary.stream_processors.api.tokens.token_store import TokenStore
from sessionary.stream_processors.core.trail import Access
from sessionary.stream_processors.runtime.assignment import Assignment

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

        Nothing happens unless it is about the unknown or foreign id of a session, or of a part.
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
        """Leave a record to the first partition that is open; if none is, the log line is all."""
        for owner in self._assignment.owners.values():
            if owner.is_readable:
                owner.accesses.append(access)
                return
