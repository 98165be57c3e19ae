"""A plain agent: a model, a tool, and a session that records their work.

python -m examples.plain_agent.agent "How high is the Eiffel tower?"
"""

import sys
from typing import NamedTuple

from sessionary.producers import Session, SessionClient, traced


class ModelAnswer(NamedTuple):
    """The answer of a model, with its tokens."""

    text: str
    tokens_in: int
    tokens_out: int


def ask_model(prompt: str) -> ModelAnswer:
    """Stand in for a real model."""
    return ModelAnswer("330 m" if "facts:" in prompt else "look_up Eiffel tower", len(prompt) // 4, 5)


@traced("tool")
def look_up(subject: str) -> str:
    """Return the facts about a subject. Each call is reported in the current session."""
    return {"Eiffel tower": "built in 1889, 330 m high"}[subject]


def think(session: Session, prompt: str) -> str:
    """Ask the model, and report the cost of the call."""
    with session.llm("large") as call:
        answer = ask_model(prompt)
        call.tokens_in, call.tokens_out = answer.tokens_in, answer.tokens_out
        call.model_cost_usd_nanos = 3_000 * answer.tokens_in + 15_000 * answer.tokens_out
    return answer.text


def answer_question(session: Session, question: str) -> str:
    """Ask the model for the subject, look it up, and ask the model for the answer."""
    _, _, subject = think(session, question).partition(" ")
    facts = look_up(subject)
    session.update_state({"question": question, "facts": facts})
    return think(session, f"{question}\nfacts: {facts}")


def main(question: str) -> None:
    """Answer one question in a new session."""
    with (
        SessionClient(tenant_id="acme", service_id="library", agent_id="librarian") as client,
        client.session(user_id="ada", state={"question": question}) as session,
    ):
        print("session", session.session_id)
        print(answer_question(session, question))
        session.complete("answered")


if __name__ == "__main__":
    main(sys.argv[1])
