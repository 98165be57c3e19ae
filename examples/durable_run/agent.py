"""A run that goes on where its last process stopped: what took effect is not done again.

python -m examples.durable_run.agent          # begins a session and its run
python -m examples.durable_run.agent SESSION  # goes on with them
"""

from sessionary.producers import Run, SessionClient, tool


@tool(effect="write", deadline=30)
def send_message(channel: str, text: str) -> str:
    """Send a message. What is sent twice would be read twice."""
    print("sent to", channel, text)
    return f"{channel}-1"


def search(question: str) -> list[str]:
    """Stand in for a search that takes long."""
    print("searched", question)
    return [f"{question}: restart the router"]


def work(run: Run) -> None:
    """Do the steps of the run; one that has succeeded before returns its stored output."""
    articles = run.step("search", search, "no network")
    run.result = run.step("notify", send_message, "#ops", articles[0])


def main(session_id: str | None) -> None:
    """Begin the run, or go on with it."""
    with SessionClient(tenant_id="acme", service_id="support", agent_id="helper") as client:
        session = client.attach(session_id) if session_id else client.session(user_id="ada")
        with session, session.run("answer", run_id="answer-1", plan=["search", "notify"], resume=True) as run:
            print("session", session.session_id, "complete" if run.is_complete else "at work")
            work(run)
            print("result", run.result)
        session.detach()
