"""Three agents answer a ticket. A failed step is retried; other agents can read the error.

python -m examples.support.agent answer SESSION_ID "no network" 5    # no model for 5 s: this fails
python -m examples.support.agent watch SESSION_ID                    # another agent reads the run
python -m examples.support.agent answer SESSION_ID "no network"      # resumes with the answer

SESSION_ID is any UUID. The first process may also be killed while it waits for the model.
"""

import sys
import time
import uuid
from typing import Any

from examples.workflow.workflow import open_session
from sessionary.producers import ResumePlan, Session, SessionClient

PLAN = ["classify", "gather_context", "write_answer"]
Document = dict[str, Any]


class Model:
    """Stand in for a model, which may be down."""

    def __init__(self, *, down: bool = False, patience_s: float = 0.0) -> None:
        """`down`: `write_answer` fails after `patience_s` seconds."""
        self._down = down
        self._patience_s = patience_s

    def classify(self, ticket: str) -> str:
        """Return a ticket's topic."""
        return "network" if "network" in ticket else "other"

    def write_answer(self, context: Document) -> str:
        """Return an answer to a ticket. Raises `TimeoutError` if the model is down."""
        if self._down:
            print("the model is down", flush=True)
            time.sleep(self._patience_s)
            raise TimeoutError("the model does not answer")
        return f"{context['ticket']}: {context['articles'][0]}"


def gather_context(ticket: str, topic: str) -> Document:
    """Stand in for a search in the knowledge base."""
    return {"ticket": ticket, "articles": [f"about {topic}: restart the router"]}


def run_id_of(session_id: str) -> str:
    """Return the id of a session's run: the same in every process."""
    return str(uuid.uuid5(uuid.UUID(session_id), "ticket"))


def answer_ticket(session: Session, model: Model, ticket: str) -> str:
    """Do the remaining steps of a ticket's run. Each step is the work of one agent."""
    run_id = run_id_of(session.session_id)
    with session.run("ticket", run_id=run_id, input=ticket, plan=PLAN, mode="detached", resume=True) as run:
        with session.metadata(actor="classifier"):
            topic = run.step("classify", model.classify, ticket)
        with session.metadata(actor="context gatherer"):
            context = run.step("gather_context", gather_context, ticket, topic)
        with session.metadata(actor="response generator"):
            run.result = run.step("write_answer", model.write_answer, context)
    return str(run.result)


def look_at(client: SessionClient, session_id: str) -> ResumePlan:
    """Return the finished steps of a ticket's run, and the failed ones. Sends nothing."""
    return client.attach(session_id).resume_run(run_id_of(session_id)).resume_plan()


def main(verb: str, session_id: str, ticket: str = "", down_s: str | None = None) -> None:
    """Answer a ticket from the point that an earlier process reached, or show its progress."""
    agent_id = "supervisor" if verb == "watch" else "support"
    with SessionClient(tenant_id="acme", service_id="support", agent_id=agent_id) as client:
        print("session", session_id, flush=True)
        if verb == "watch":
            seen = look_at(client, session_id)
            why = "" if seen.error is None else seen.error.message
            print("done", *seen.done, "to retry", *seen.to_retry, why)
            return
        session = open_session(client, session_id)
        model = Model(down=down_s is not None, patience_s=float(down_s or 0))
        print("answer", answer_ticket(session, model, ticket))
        session.complete("answered")


if __name__ == "__main__":
    main(*sys.argv[1:])
