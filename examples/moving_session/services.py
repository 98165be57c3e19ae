"""A purchase in three services: the session moves as planned, and is taken over after a crash.

python -m examples.moving_session.services payments
python -m examples.moving_session.services research
python -m examples.moving_session.services shipping SESSION_ID
"""

import queue
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from threading import Event, Thread

from sessionary.producers import CleanupRequest, EventRejected, Limits, Rejected, Session, SessionClient, SessionFenced

AGENTS = {"research": "researcher_1", "payments": "analyzer_1", "shipping": "writer_1"}
ROLES = {"researcher_1": "researcher", "analyzer_1": "analyzer", "writer_1": "writer"}
QUESTION = "Buy 40 laptops at Nord for 38,000 EUR?"
# Heartbeats are 4 s apart: another service may claim the session after 8 s of silence.
LIMITS = Limits(model_ms=12_000, tool_ms=8_000, network_ms=4_000, override=True)
_ANSWER_TIME = timedelta(minutes=10)
_MOVE_S = 120.0
_CLEAN_UP_S = 120.0
_WORK_PAUSE_S = 0.03
_CLAIM_PAUSE_S = 1.0


def say(text: str) -> None:
    """Print a line at once."""
    print(text, flush=True)


def note_rejected(error: EventRejected) -> None:
    """Print a rejected event of a service that no longer owned the session."""
    say(f"{error.event_type} was rejected: {error.reason}")


def research(client: SessionClient) -> str:
    """Find an offer, ask a person for approval, and move the session; return the session's id."""
    with client.session(user_id="ada", state={"item": "laptop", "count": 40}, limits=LIMITS) as session:
        say(f"session {session.session_id}")
        for service_id, agent_id in AGENTS.items():
            session.agents.get(agent_id, ROLES[agent_id], service_id=service_id)
        researcher = session.agents.get("researcher_1")
        researcher.begin("compare_offers")
        researcher.finish({"Nord": 38_000, "Sued": 41_000})
        session.update_state({**session.state, "seller": "Nord", "price": 38_000})
        answer = session.ask(QUESTION, deadline=_ANSWER_TIME)
        say(f"{answer.reason_code} by {answer.by or 'the clock'} in epoch {session.epoch}")
        if not answer.approved:
            session.cancel(f"not bought: {answer.reason_code}")
            return session.session_id
        session.update_state({**session.state, "approved_by": answer.by})
        researcher.handoff("analyzer_1")
        worker = Thread(target=work_until_fenced, args=(session,))
        worker.start()
        moved = session.migration.move(to="payments", ttl_s=_MOVE_S, reason="the order is approved")
        worker.join()
        say(f"moved to {moved.to_service} in epoch {moved.epoch}")
    return session.session_id


def work_until_fenced(session: Session) -> None:
    """Work as an agent while the session moves, until the session has another owner."""
    try:
        while True:
            session.activity("watching the price")
            time.sleep(_WORK_PAUSE_S)
    except SessionFenced:
        say("fenced off")


def payments(client: SessionClient) -> str:
    """Accept the session as planned, and pay. Kill the process while it waits for the bank."""
    arrived: queue.SimpleQueue[Session] = queue.SimpleQueue()
    client.accept_migrations(arrived.put)
    say("accepts sessions")
    session = arrived.get()
    say(f"session {session.session_id} arrived in epoch {session.epoch}")
    analyzer = session.agents.get("analyzer_1")
    analyzer.begin("check_budget")
    prices = analyzer.view().visible_context["researcher_1_compare_offers"]
    analyzer.finish({"within_budget": min(prices.values()) < 40_000})
    session.update_state({**session.state, "paid": True})
    analyzer.handoff("writer_1")
    say("waits for the bank's receipt")
    Event().wait()  # stands in for a bank that does not answer
    return session.session_id


def shipping(client: SessionClient, session_id: str) -> str:
    """Take the session over from a service that died, and finish the purchase."""
    session = claim_when_silent(client, session_id)
    if session.local_state == "Timeout":
        session.resume("payments is gone")
    say(f"claimed in epoch {session.epoch} with {session.state}")
    writer = session.agents.get("writer_1")
    writer.begin("order_delivery")
    known = writer.view().visible_context
    writer.finish({"delivery": "Monday", "because_of": sorted(known)})
    session.update_state({**session.state, "delivery": "Monday"})
    session.complete("delivered")
    say("completed")
    return session_id


def claim_when_silent(client: SessionClient, session_id: str) -> Session:
    """Claim a session of another service as soon as its owner has been silent for long enough."""
    while True:
        try:
            return client.claim(session_id)
        except Rejected as error:
            if error.reason != "owner_alive":
                raise
            say("rejected: its owner may be alive")
            time.sleep(_CLAIM_PAUSE_S)


def main(arguments: Sequence[str]) -> None:
    """Run one of the services, until it has cleaned up its resources of the session."""
    service_id = arguments[0]
    cleaned_up: queue.SimpleQueue[str] = queue.SimpleQueue()

    def clean_up(request: CleanupRequest) -> None:
        say(f"cleans up session {request.session_id}: {request.reason_code}")
        cleaned_up.put(request.session_id)

    with SessionClient(
        tenant_id="acme", service_id=service_id, agent_id=AGENTS[service_id], on_rejected=note_rejected
    ) as client:
        client.on_cleanup(clean_up)
        if service_id == "research":
            session_id = research(client)
        elif service_id == "payments":
            session_id = payments(client)
        else:
            session_id = shipping(client, arguments[1])
        while cleaned_up.get(timeout=_CLEAN_UP_S) != session_id:  # skip earlier sessions of the service
            pass


if __name__ == "__main__":
    main(sys.argv[1:])
