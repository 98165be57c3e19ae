"""What the stack is under: recorded agent runs again and again, and a host that cleans up badly."""

import secrets
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

from sessionary.infra.demo.plan import make_plan
from sessionary.infra.demo.plan_runner import PlanRunner
from sessionary.infra.demo.runs import sample_runs
from sessionary.infra.environment import tenant_tokens
from sessionary.producers import ProducerSettings, SessionClient
from sessionary.producers.ports import OnCleanupRequest, OnReceipt, Receipt
from sessionary.schemas.errors import SessionaryError
from sessionary.schemas.records import CleanupRequest
from tests.integration.pipeline_rig import brief_limits

TENANT, CARELESS_SERVICE = "acme", "careless"
_RUNS = 20
_SPEED = 300.0
_GAP_S = 60.0
_JOIN_S = 180.0
# A confirmation may come late: a client's first request waits until its consumer group has members.
_LIMITS = brief_limits()._replace(release_limit_ms=60_000)


class DemoLoad:
    """Plays the demo's agent runs until it is stopped. A context manager.

    Every session ends by itself, so that no clean-up after a timeout is the load's.
    """

    def __init__(self, environ: Mapping[str, str], on_error: Callable[[str], None]) -> None:
        """`environ`: the stack's variables. `on_error` gets what an action met."""
        self._environ, self._on_error = environ, on_error
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._play_rounds, name="load", daemon=True)
        self.events = 0

    def __enter__(self) -> "DemoLoad":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(_JOIN_S)

    def _play_rounds(self) -> None:
        seed = 0
        while not self._stop.is_set():
            seed += 1
            try:
                self._play_round(seed)
            except SessionaryError as error:
                self._on_error(str(error))
                self._stop.wait(1.0)

    def _play_round(self, seed: int) -> None:
        plan = make_plan(sample_runs(_RUNS), demo_id=secrets.token_hex(8), seed=seed, speed=_SPEED, gap_s_max=_GAP_S)
        plan = plan._replace(sessions=tuple(one for one in plan.sessions if one.expected[-1] == "T13"))
        tokens = tenant_tokens(self._environ)
        with (
            tempfile.TemporaryDirectory(prefix="sessionary-alerts-load-") as folder,
            PlanRunner(plan, self._environ, tokens, Path(folder), self._on_error) as runner,
        ):
            runner.run_plan(lambda _text: None)
            self.events += runner.counts.sent


class CarelessHost:
    """Starts sessions that fall silent, and confirms nine of ten clean-ups. A context manager."""

    def __init__(self, environ: Mapping[str, str], folder: Path, on_error: Callable[[str], None]) -> None:
        """`environ`: the stack's variables. `folder`: for the client's spool."""
        settings = ProducerSettings.from_env(
            environ, api_token=tenant_tokens(environ)[TENANT], spool_dir=folder, handle_sigterm=False
        )
        self._client = SessionClient(
            tenant_id=TENANT,
            service_id=CARELESS_SERVICE,
            agent_id="careless-agent",
            settings=settings,
            on_error=lambda error: on_error(str(error)),
        )
        self._forgotten: set[str] = set()
        self._forget_requests()
        self._client.on_cleanup(lambda _request: None)

    def __enter__(self) -> "CarelessHost":
        return self

    def __exit__(self, *_error: object) -> None:
        self._client.close()

    def start_silent_sessions(self, number: int) -> None:
        """Start sessions and fall silent at once; every tenth one will be forgotten."""
        for place in range(number):
            session = self._client.create(user_id="u", limits=_LIMITS)
            if place % 10 == 9:
                self._forgotten.add(session.session_id)
            session.start()
            session.lifecycle.detach()
        self._client.flush(120)

    def _forget_requests(self) -> None:
        """Have the requests for forgotten sessions taken, and never answered."""
        cleanups = self._client.core.ports.cleanups
        start = cleanups.start

        def start_forgetful(on_request: OnCleanupRequest) -> None:
            def answer(request: CleanupRequest, on_receipt: OnReceipt) -> None:
                if request.session_id in self._forgotten:
                    on_receipt(Receipt(None, None))
                else:
                    on_request(request, on_receipt)

            start(answer)

        cleanups.start = start_forgetful  # type: ignore[method-assign]
