"""Three agents in three processes share one session: a researcher, an analyzer and a writer.

python -m examples.agent_team.agents
"""

import subprocess
import sys

from sessionary.producers import Session, SessionClient, VersionConflict

SERVICES = {"researcher_1": "research", "analyzer_1": "analysis", "writer_1": "writing"}
ROLES = {"researcher_1": "researcher", "analyzer_1": "analyzer", "writer_1": "writer"}


def note_progress(session: Session, agent_id: str) -> None:
    """Add the agent to the session's content; another agent may do so at the same time."""
    while True:
        try:
            session.update_state({**session.state, "done": [*session.state["done"], agent_id]})
            return
        except VersionConflict:
            continue  # `session.state` is the newest content now


def gather_papers(seen: dict[str, list[str]]) -> list[str]:
    """Stand in for a search."""
    return ["p1", "p2", "p3"]


def analyze_papers(seen: dict[str, list[str]]) -> list[str]:
    """Stand in for a model that reads the researcher's papers."""
    papers = seen["researcher_1_gather_papers"]
    return [f"insight{number}" for number in range(1, len(papers))]


def create_report(seen: dict[str, list[str]]) -> list[str]:
    """Stand in for a model that writes about the other agents' findings."""
    return [f"{name}: {', '.join(found)}" for name, found in seen.items()]


TASKS = {"researcher_1": gather_papers, "analyzer_1": analyze_papers, "writer_1": create_report}
NEXT = {"researcher_1": "analyzer_1", "analyzer_1": "writer_1"}


def work(agent_id: str, session_id: str) -> None:
    """Do one agent's task in a separate process, and hand over to the next agent."""
    with SessionClient(tenant_id="acme", service_id=SERVICES[agent_id], agent_id=agent_id) as client:
        session = client.attach(session_id)
        agent, do_task = session.agents.get(agent_id), TASKS[agent_id]
        agent.begin(do_task.__name__)
        view = agent.view()
        print(agent_id, "sees", list(view.visible_context), "depends on", view.dependencies)
        agent.finish(do_task(dict(view.visible_context)))
        note_progress(session, agent_id)
        if agent_id in NEXT:
            agent.handoff(NEXT[agent_id])
        session.lifecycle.detach()  # leaving a `with` block would end the session for all


def main() -> None:
    """Own the session: register the agents and their services, start them, read the report."""
    with (
        SessionClient(tenant_id="acme", service_id="press", agent_id="editor") as client,
        client.session(user_id="ada", state={"done": []}) as session,
    ):
        print("session", session.session_id)
        for agent_id, role in ROLES.items():
            session.agents.get(agent_id, role, service_id=SERVICES[agent_id])
        for agent_id in ROLES:
            subprocess.run(
                [sys.executable, "-m", "examples.agent_team.agents", agent_id, session.session_id], check=True
            )
        report = session.agents.get("writer_1").view().visible_context["writer_1_create_report"]
        session.sync()  # adopt the agents' changes
        print(*report, sep="\n")
        print("done:", ", ".join(session.state["done"]), "in version", session.version)
        session.complete("reported")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        work(sys.argv[1], sys.argv[2])
    else:
        main()
