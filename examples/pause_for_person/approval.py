"""An agent that asks a person and waits for the answer.

python -m examples.pause_for_person.approval 1200
sessionary question list
sessionary question approve SESSION_ID --reason "known customer"
"""

import sys
from datetime import timedelta

from sessionary.producers import SessionClient


def pay(client: SessionClient, amount: int, deadline: timedelta) -> None:
    """Pay once a person has approved; a question without an answer is rejected."""
    with client.session(user_id="ada", state={"amount": amount}) as session:
        print("session", session.session_id, flush=True)
        answer = session.ask(f"Pay {amount}?", deadline=deadline)
        print(f"{answer.reason_code} by {answer.by or 'the clock'} in epoch {session.epoch}")
        if not answer.approved:
            session.cancel(f"not paid: {answer.reason_code}")
            return
        session.update_state({**session.state, "paid": True})
        session.complete("paid")


def main(arguments: list[str]) -> None:
    """Ask about an amount; the second argument is the deadline in seconds."""
    seconds = float(arguments[1]) if len(arguments) > 1 else 3_600.0
    with SessionClient(tenant_id="acme", service_id="payments", agent_id="cashier") as client:
        pay(client, int(arguments[0]), timedelta(seconds=seconds))


if __name__ == "__main__":
    main(sys.argv[1:])
