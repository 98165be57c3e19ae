"""Replay by the client: modes, counts, keys, points; nothing is executed and nothing is sent."""

from collections import Counter

from sessionary.producers import Session, SessionClient, tool, traced
from sessionary.producers.replay.answers import ReplayCounts
from sessionary.producers.testing import memory_client

made = Counter[str]()


@tool(effect="read")
def search(query: str, limit: int = 3) -> dict[str, object]:
    made["search"] += 1
    return {"query": query, "n": made["search"], "limit": limit}


@tool(effect="write")
def pay(order: str) -> str:
    made["pay"] += 1
    return f"paid {order}"


@traced("llm", capture=True)
def ask_model(prompt: str) -> str:
    made["ask_model"] += 1
    return f"answer {made['ask_model']} to {prompt}"


def agent(session: Session) -> list[object]:
    with session.turn():
        session.message("user", "look")
        first = search("a")
        session.usage(model="m", tokens_in=7, tokens_out=3)
        second = search("a")
        answer = ask_model(f"{session.random()} {session.now().isoformat()}")
        session.message("assistant", answer)
    with session.run("order") as run:
        paid = run.step("pay", lambda: pay("o1"))
    session.update_state({"paid": paid})
    return [first, second, answer, paid]


def recorded() -> tuple[SessionClient, str, list[object], int]:
    made.clear()
    client, memory = memory_client()
    with client.session(user_id="u1", state={"paid": None}) as session:
        outcome = agent(session)
    assert made == {"search": 2, "ask_model": 1, "pay": 1}
    made.clear()
    return client, session.session_id, outcome, len(memory.records())


def test_an_unchanged_agent_gets_the_recorded_answers_and_executes_nothing() -> None:
    client, session_id, outcome, _ = recorded()
    sent = client.counters.sent
    with client.replay(session_id) as replay, replay.session() as session:
        assert agent(session) == outcome
    assert replay.counts == ReplayCounts(served=4, missed=0, blocked=0, executed=0)
    assert (replay.difference, replay.reproduces) == (None, True)
    assert made == {}
    assert client.counters.sent == sent
