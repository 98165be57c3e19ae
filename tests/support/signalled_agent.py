"""An agent that is told to stop by a signal while it waits: for a person, or in a turn.

python -m tests.support.signalled_agent SESSION_ID PLACE

Prints a line once it waits, and a line with what it got.
"""

import asyncio
import signal
import sys
import threading

from sessionary.producers import AsyncSessionClient, Session, SessionClient

QUESTION = "Refund 1200?"
TENANT, SERVICE, AGENT = "acme", "refunds", "a"


def say(*words: object) -> None:
    sys.stdout.write(f"{' '.join(map(str, words))}\n")
    sys.stdout.flush()


def ask_in_a_step(session: Session) -> None:
    with session.run("refund", run_id="r", resume=True) as run:
        run.result = run.step("approve", lambda: session.ask(QUESTION, 600).approved)
    say("answer", run.result)


def ask_outside(session: Session) -> None:
    say("answer", session.ask(QUESTION, 600).approved)


async def ask_in_asyncio(client: AsyncSessionClient, session_id: str) -> None:
    async with client, await client.open(session_id, user_id="ada") as session:

        async def approve() -> bool:
            return (await session.ask(QUESTION, 600)).approved

        async with session.run("refund", run_id="r", resume=True) as run:
            run.result = await run.step("approve", approve)
        say("answer", run.result)


def take_a_turn(session: Session) -> None:
    """Take a turn that lasts for ever, or, once there is a message, a short one."""
    with session.turn() as turn:
        messages = len(session.conversation.read())
        session.message("user", "hello")
        if not messages:
            session.sync()
            say("in turn")
            threading.Event().wait()
    session.sync()
    say("turn", turn.number)


def main(session_id: str, place: str) -> None:
    # A shell that starts tests in the background lets its children ignore it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if place == "asyncio":
        asyncio.run(
            ask_in_asyncio(AsyncSessionClient(tenant_id=TENANT, service_id=SERVICE, agent_id=AGENT), session_id)
        )
        return
    with SessionClient(tenant_id=TENANT, service_id=SERVICE, agent_id=AGENT) as client:
        if place == "turn":
            take_a_turn(client.open(session_id, user_id="ada"))
            return
        with client.open(session_id, user_id="ada") as session:
            (ask_in_a_step if place == "step" else ask_outside)(session)


if __name__ == "__main__":
    main(*sys.argv[1:])
