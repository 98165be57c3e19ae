"""The graph, ported: its nodes are steps, whose outputs are the checkpoints; a person approves.

python -m examples.ported.graph thread-1
"""

import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from sessionary.producers import Session, SessionClient, current_session

State = dict[str, Any]


class Graph:
    """Nodes that change a state, and edges that choose the next node."""

    def __init__(self) -> None:
        self.nodes: dict[str, Callable[[State], State]] = {}
        self.edges: dict[str, Callable[[State], str]] = {}

    def add(self, node: Callable[[State], State], edge: Callable[[State], str]) -> None:
        """Add a node, and the choice of the one after it."""
        self.nodes[node.__name__], self.edges[node.__name__] = node, edge

    def invoke(self, session: Session, state: State) -> State:
        """Run a thread to its end; what is done already comes from the record."""
        node = "plan"
        with session.run("graph", run_id="graph", input=state, resume=True) as run:
            while node != "END":
                state = {**state, **run.step(node, self.nodes[node], state)}
                node = self.edges[node](state)
            run.result = state
        return state


def plan(state: State) -> State:
    """Say what is to be done."""
    return {"plan": f"refund {state['order']}"}


def lookup(state: State) -> State:
    """Look up the amount."""
    return {"amount": 1200}


def approve(state: State) -> State:
    """Ask a person."""
    session = current_session()
    assert isinstance(session, Session)
    answer = session.ask(f"refund {state['amount']}?", timedelta(hours=4))
    return {"approved": answer.approved}


def refund(state: State) -> State:
    """Pay the amount back."""
    return {"done": f"refunded {state['amount']}"}


def reject(state: State) -> State:
    """Pay nothing back."""
    return {"done": "rejected"}


def build() -> Graph:
    """Return the graph."""
    graph = Graph()
    graph.add(plan, lambda state: "lookup")
    graph.add(lookup, lambda state: "approve")
    graph.add(approve, lambda state: "refund" if state["approved"] else "reject")
    graph.add(refund, lambda state: "END")
    graph.add(reject, lambda state: "END")
    return graph


def main(thread_id: str) -> None:
    """Refund one order."""
    client = SessionClient(tenant_id="acme", service_id="refunds", agent_id="graph")
    with client, client.open(thread_id, user_id="ada", resume=True) as session:
        print(build().invoke(session, {"order": "A-7"}))


if __name__ == "__main__":
    main(sys.argv[1])
