"""A graph of nodes with checkpoints, in which a person approves. Without sessionary.

python -m examples.ported.graph_before thread-1
"""

import json
import sys
from collections.abc import Callable
from typing import Any

State = dict[str, Any]


class MemorySaver:
    """Checkpoints of each thread: the state after each node, and which node comes next."""

    def __init__(self) -> None:
        self.saved: dict[str, list[tuple[str, State]]] = {}

    def put(self, thread_id: str, next_node: str, state: State) -> None:
        """Keep a checkpoint."""
        self.saved.setdefault(thread_id, []).append((next_node, json.loads(json.dumps(state))))

    def get(self, thread_id: str) -> tuple[str, State] | None:
        """Return the last checkpoint; None if there is none."""
        return self.saved[thread_id][-1] if thread_id in self.saved else None


class Graph:
    """Nodes that change a state, and edges that choose the next node."""

    def __init__(self, saver: MemorySaver) -> None:
        self.nodes: dict[str, Callable[[State], State]] = {}
        self.edges: dict[str, Callable[[State], str]] = {}
        self.saver = saver

    def add(self, node: Callable[[State], State], edge: Callable[[State], str]) -> None:
        """Add a node, and the choice of the one after it."""
        self.nodes[node.__name__], self.edges[node.__name__] = node, edge

    def invoke(self, thread_id: str, state: State) -> State:
        """Run a thread to its end, from its last checkpoint on."""
        checkpoint = self.saver.get(thread_id)
        node, state = checkpoint or ("plan", state)
        while node != "END":
            state = {**state, **self.nodes[node](state)}
            node = self.edges[node](state)
            self.saver.put(thread_id, node, state)
        return state


def plan(state: State) -> State:
    """Say what is to be done."""
    return {"plan": f"refund {state['order']}"}


def lookup(state: State) -> State:
    """Look up the amount."""
    return {"amount": 1200}


def approve(state: State) -> State:
    """Ask a person."""
    answer = input(f"refund {state['amount']}? ")
    return {"approved": answer == "yes"}


def refund(state: State) -> State:
    """Pay the amount back."""
    return {"done": f"refunded {state['amount']}"}


def reject(state: State) -> State:
    """Pay nothing back."""
    return {"done": "rejected"}


def build(saver: MemorySaver) -> Graph:
    """Return the graph."""
    graph = Graph(saver)
    graph.add(plan, lambda state: "lookup")
    graph.add(lookup, lambda state: "approve")
    graph.add(approve, lambda state: "refund" if state["approved"] else "reject")
    graph.add(refund, lambda state: "END")
    graph.add(reject, lambda state: "END")
    return graph


def main(thread_id: str) -> None:
    """Refund one order."""
    print(build(MemorySaver()).invoke(thread_id, {"order": "A-7"}))


if __name__ == "__main__":
    main(sys.argv[1])
