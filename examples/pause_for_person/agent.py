"""An agent that waits for a person, and a second process that continues with the answer.

python -m examples.pause_for_person.agent ask 1200
python -m examples.pause_for_person.agent answer SESSION_ID yes
"""

import sys

from sessionary.producers import SessionClient


def ask_person(client: SessionClient, amount: int) -> None:
    """Begin a payment, and pause until a person has decided. Return without ending the session."""
    with client.session(user_id="ada", state={"amount": amount}) as session:
        session.info(f"a payment of {amount} needs a decision")
        session.pause("amount above 1,000", kind="review")
        session.sync()  # the processor has accepted the pause
        session.lifecycle.detach()  # without this, leaving the block would cancel the session
        print("session", session.session_id)


def take_answer(client: SessionClient, session_id: str, answer: str) -> None:
    """Continue the session, perhaps hours later and on another machine."""
    with client.attach(session_id) as session:
        state = session.resume(f"the person said {answer}")
        print("resumed with", state["amount"], "in epoch", session.epoch)
        if answer != "yes":
            session.cancel("declined")
            return
        session.update_state({**state, "paid": True})
        session.complete("paid")


def main(arguments: list[str]) -> None:
    """Ask the person, or take the answer."""
    with SessionClient(tenant_id="acme", service_id="payments", agent_id="cashier") as client:
        if arguments[0] == "ask":
            ask_person(client, int(arguments[1]))
        else:
            take_answer(client, arguments[1], arguments[2])


if __name__ == "__main__":
    main(sys.argv[1:])
