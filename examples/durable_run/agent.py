"""A run with two steps and a tool: a process that resumes the run repeats no effect.

python -m examples.durable_run.agent
"""

from sessionary.producers import Session, SessionClient, tool


@tool(effect="write", deadline=30)
def send_message(channel: str, text: str) -> str:
    """Stand in for a service that delivers each request: two requests are two messages."""
    print("sent to", channel, text)
    return f"{channel}-1"


def search(question: str) -> list[str]:
    """Stand in for a search that takes long."""
    return [f"{question}: restart the router"]


def answer_ticket(session: Session, ticket: str) -> str:
    """Do the remaining steps of a ticket's run."""
    with session.run("answer", run_id=ticket, plan=["search", "notify"], resume=True) as run:
        articles = run.step("search", search, "no network")
        run.result = run.step("notify", send_message, "#ops", articles[0])
    return f"{run.result}"


def main() -> None:
    """Answer one ticket. A second call finds its run complete, and returns its stored result."""
    with (
        SessionClient(tenant_id="acme", service_id="support", agent_id="helper") as client,
        client.session(user_id="ada") as session,
    ):
        print("session", session.session_id)
        print(answer_ticket(session, "ticket-1"), answer_ticket(session, "ticket-1"))


if __name__ == "__main__":
    main()
