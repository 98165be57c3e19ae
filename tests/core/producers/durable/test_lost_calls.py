"""A call with an effect that a run had reached, and whose record is gone: people decide."""

import pytest

from sessionary.producers import Json, Session, SessionEnded, ToolCallUnresolved, tool
from sessionary.producers.testing import InMemoryTransport, memory_client
from sessionary.schemas.events import ToolCallResolved
from sessionary.schemas.ids import call_key, derived_id, run_key

KEY = "order-7"


class Orders:
    """A tool with an effect, and its calls."""

    def __init__(self) -> None:
        self.calls: list[Json] = []
        self.send = tool(name="send", effect="write", key=lambda order: KEY)(self._send)

    def _send(self, order: Json) -> Json:
        self.calls.append(order)
        return "sent"


def reach_the_call(session: Session, orders: Orders, items: int) -> None:
    """Let a run make its call, and its process die then."""
    run = session.run("report", run_id="r")
    run.__enter__()
    for _ in run.items(range(items), name="orders"):
        orders.send("a")
        break
    else:
        orders.send("a")
    run._leave_metadata()


def forget_call(memory: InMemoryTransport, session: Session) -> None:
    """Let the record of the run's call vanish, as a shorter retention would."""
    parent = run_key("acme", session.session_id, "r")
    for state in memory.core.judge._states:
        state.load(call_key(parent, KEY), None)
        kept = [key for key in state.children(parent) if key in state.rows]
        state.child_index.drop(parent)
        for key in kept:
            state.child_index.add(key)


@pytest.mark.parametrize("items", [0, 3], ids=["in no list", "in a list"])
def test_a_call_whose_record_is_gone_goes_to_the_queue_of_people(items: int) -> None:
    orders = Orders()
    client, memory = memory_client()
    with client, client.session(user_id="u") as session:
        reach_the_call(session, orders, items)
        forget_call(memory, session)
        with pytest.raises(ToolCallUnresolved, match="its record is gone"), session.resume_run("r"):
            orders.send("a")
        memory.advance(1)
        plan = session.resume_run("r").resume_plan()
        assert (plan.state, plan.unresolved) == ("paused", (KEY,))
        with pytest.raises(ToolCallUnresolved), session.resume_run("r"):
            orders.send("a")
        call_id = derived_id("acme", session.session_id, "r", KEY)
        outcome = ToolCallResolved(call_id, "send", KEY, "succeeded", '"sent before"', "ann")
        session.emit(outcome, run_id="r", actor="ann")
        with session.resume_run("r"):
            assert orders.send("a") == "sent before"
    assert orders.calls == ["a"]


def test_a_call_whose_record_is_there_is_not_asked_about() -> None:
    orders = Orders()
    client, memory = memory_client()
    with client, client.session(user_id="u") as session:
        reach_the_call(session, orders, 0)
        with session.resume_run("r"):
            assert orders.send("a") == "sent"
    assert orders.calls == ["a"]
    assert memory.rejections() == []


def test_a_person_resolves_the_call_of_a_run_that_outlived_its_session() -> None:
    @tool(name="send", effect="write", key=lambda order: KEY, deadline=1)
    def send(order: str) -> None:
        raise KeyboardInterrupt

    client, memory = memory_client()
    session = client.session(user_id="u")
    run = session.run("report", run_id="r", mode="detached")
    run.__enter__()
    with pytest.raises(KeyboardInterrupt):
        send("a")
    run._leave_metadata()
    memory.silence(session)
    memory.advance(3_600)
    assert memory.find_row(session.session_id).state == "Terminated"
    other, _ = memory_client(agent_id="person", memory=memory)
    attached = other.attach(session.session_id)
    call_id = derived_id("acme", session.session_id, "r", KEY)
    attached.emit(ToolCallResolved(call_id, "send", KEY, "failed", None, "ann"), run_id="r", actor="ann")
    assert memory.rejections() == []
    with pytest.raises(SessionEnded):  # it is of no run that may go on
        attached.emit(ToolCallResolved(call_id, "send", KEY, "failed", None, "ann"))
    client.close()
