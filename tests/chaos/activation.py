"""An operator who activates rules with another setting in a run, until it works."""

import random
import threading
import time
from collections.abc import Callable

from sessionary.infra.control_api_client import ControlApiClient
from sessionary.infra.settings import OperatorSettings
from sessionary.schemas.errors import SessionaryError
from sessionary.schemas.rules import NEWEST_RULES
from tests.chaos.stack import OPERATOR_TOKEN, ChaosStack

_PAUSE_S = 1.0
_DAYS = NEWEST_RULES.finished_run_days + 1


class RulesActivation:
    """Activates rules after a third to two thirds of a run; `report` is called with a line.

    By them finished runs are kept for one more day, and with the role quotas, runs ask for quotas.
    `at_once`: as soon as it is started.
    """

    def __init__(
        self, stack: ChaosStack, seed: int, seconds: float, report: Callable[[str], None], *, at_once: bool = False
    ) -> None:
        self._report, self._stop, self._done = report, threading.Event(), threading.Event()
        drawn_s = random.Random(f"rules:{seed}").uniform(seconds / 3, seconds * 2 / 3)
        self._delay_s = 0.0 if at_once else drawn_s
        self._quotas = stack.quotas_url is not None
        self._clients = [
            ControlApiClient(OperatorSettings.model_validate({"control_url": url, "operator_token": OPERATOR_TOKEN}))
            for url in stack.control_urls.values()
        ]
        self._thread = threading.Thread(target=self._run, daemon=True)

    def are_in_force(self) -> bool:
        """Return whether the rules are in force on all partitions."""
        return self._done.is_set()

    def start(self) -> None:
        self._thread.start()

    def wait(self, timeout_s: float) -> list[str]:
        """Wait until the rules are in force; return what is wrong."""
        self._thread.join(timeout_s)
        return ["the rules with another setting were not activated"] if self._thread.is_alive() else []

    def stop(self) -> None:
        self._stop.set()

    def _run(self) -> None:
        self._stop.wait(self._delay_s)
        began_s, attempts = time.monotonic(), 0
        while not self._stop.is_set():
            client = self._clients[attempts % len(self._clients)]
            attempts += 1
            try:
                listing = client.activate_rules(NEWEST_RULES.version, _DAYS, quotas=self._quotas)
                partitions = listing["partitions"]
            except SessionaryError:
                partitions = []  # a worker is down, or a partition is not open
            wanted = _DAYS, self._quotas
            if partitions and all((found["finished_run_days"], found["quotas"]) == wanted for found in partitions):
                took_s = time.monotonic() - began_s
                self._done.set()
                self._report(f"the other setting in force after {took_s:.1f} s and {attempts} attempts")
                return
            self._stop.wait(_PAUSE_S)
