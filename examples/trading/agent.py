"""Trading in four steps; the exchange falls silent in the last. No order is placed twice.

python -m examples.trading.agent ORDERS SESSION_ID 2    # silent from the second order on: kill it
python -m examples.trading.agent ORDERS SESSION_ID      # resumes with the orders

ORDERS is the file of the exchange, SESSION_ID is any UUID. The session handles financial data, so
its audit trail is kept for seven years.
"""

import json
import os
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from examples.workflow.workflow import open_session
from sessionary.producers import Limits, Retry, Session, SessionClient, TookEffect, current_tool_key, tool

PLAN = ["analyse_market", "recommend", "assess_risk", "execute_trades"]
MINUTES = {"analyse_market": 20, "recommend": 15, "assess_risk": 10, "execute_trades": 5}
LIMITS = Limits(idle_ms=3_600_000)  # an analysis is silent for longer than the default of 15 minutes
Order = dict[str, Any]
Work = Callable[[str], None]


class Exchange:
    """Stand in for an exchange that keeps orders in a file, with the keys of their requests."""

    def __init__(self, path: Path, *, silent_from: int | None = None, patience_s: float = 0.0) -> None:
        """`silent_from`: from this order on, requests fail after `patience_s` seconds."""
        self._path = path
        self._silent_from = silent_from
        self._patience_s = patience_s
        self._path.touch()

    def orders(self) -> list[Order]:
        """Return all orders, in the order in which they were placed."""
        return [json.loads(line) for line in self._path.read_text("utf-8").splitlines()]

    def place(self, order: Order, key: str | None) -> Order:
        """Place an order."""
        placed = {**order, "key": key, "order_id": len(self.orders()) + 1}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(placed) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._answer()
        return placed

    def find(self, key: str) -> TookEffect | None:
        """Return the order that was placed under a key, if one was."""
        self._answer()
        return next((TookEffect(order) for order in self.orders() if order["key"] == key), None)

    def _answer(self) -> None:
        if self._silent_from is not None and len(self.orders()) >= self._silent_from:
            print("the exchange has", len(self.orders()), "orders, and falls silent", flush=True)
            time.sleep(self._patience_s)
            raise TimeoutError("the exchange does not answer")


def analyse_market(symbols: list[str]) -> dict[str, float]:
    """Stand in for a model; return the expected gain of each symbol."""
    return {symbol: round(0.01 * len(symbol), 2) for symbol in symbols}


def recommend(outlook: dict[str, float]) -> list[Order]:
    """Stand in for a model; return the orders that it recommends."""
    return [{"buy": symbol, "amount": round(1_000 * gain)} for symbol, gain in sorted(outlook.items())]


def assess_risk(orders: list[Order]) -> list[Order]:
    """Keep the orders that are not too large."""
    return [order for order in orders if order["amount"] <= 50]


def trade(session: Session, exchange: Exchange, symbols: list[str], work: Work) -> list[Order]:
    """Do the remaining steps of a run; return the orders that were placed.

    `work` is called with each step's name, and stands in for the time that the step needs.
    """

    @tool(effect="write", query=exchange.find, retry=Retry(retries=0), deadline=2, wait_s=60)
    def place_order(order: Order) -> Order:
        return exchange.place(order, current_tool_key())

    def execute_trades(orders: list[Order]) -> list[Order]:
        return [place_order(order) for order in orders]

    def with_work(name: str, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def step(given: Any) -> Any:
            work(name)
            return function(given)

        return step

    run_id = str(uuid.uuid5(uuid.UUID(session.session_id), "trade"))
    with session.run("trade", run_id=run_id, input=symbols, plan=PLAN, mode="detached", resume=True) as run:
        outlook = run.step("analyse_market", with_work("analyse_market", analyse_market), symbols)
        wanted = run.step("recommend", with_work("recommend", recommend), outlook)
        allowed = run.step("assess_risk", with_work("assess_risk", assess_risk), wanted)
        run.result = run.step("execute_trades", with_work("execute_trades", execute_trades), allowed)
    placed: list[Order] = run.result
    return placed


def main(path: str, session_id: str, silent_from: str | None = None) -> None:
    """Trade in one session, from the point that an earlier process reached."""
    exchange = Exchange(Path(path), silent_from=int(silent_from) if silent_from else None, patience_s=60)

    def work(name: str) -> None:
        print("step", name, flush=True)
        time.sleep(MINUTES[name] / 100)

    with SessionClient(tenant_id="acme", service_id="trading", agent_id="trader") as client:
        print("session", session_id, flush=True)
        session = open_session(client, session_id, data_classes=("financial",), limits=LIMITS)
        placed = trade(session, exchange, ["OAK", "BIRCH", "SEQUOIA"], work)
        print("placed", [order["order_id"] for order in placed])
        session.complete("traded")


if __name__ == "__main__":
    main(*sys.argv[1:])
