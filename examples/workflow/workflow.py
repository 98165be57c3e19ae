"""A run of three steps that may be killed anywhere and started again. No message is sent twice.

python -m examples.workflow.services /tmp/messages          # prints the services' URL
python -m examples.workflow.workflow URL SESSION_ID BILL-7  # kill it, and start it again
"""

import json
import sys
import uuid
from collections.abc import Sequence
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

from sessionary.producers import DataClass, Limits, Session, SessionClient, TookEffect, current_tool_key, tool
from sessionary.producers.errors import Rejected, SessionEnded, SessionExists, SessionLost

PLAN = ["fetch_issue", "search_kb", "notify_team"]
Document = dict[str, Any]


class Tools:
    """The tools of the workflow, which call two services at `url`.

    With `asks` the tool asks the messenger about an interrupted call. Without, only a person can
    decide whether the call took effect.
    """

    def __init__(self, url: str, *, asks: bool = True) -> None:
        def find_message(key: str) -> TookEffect | None:
            try:
                return TookEffect(ask_service(f"{url}/messages?key={quote(key)}"))
            except HTTPError as error:
                if error.code != 404:
                    raise
                return None

        @tool(effect="read", deadline=2, wait_s=60)
        def jira_get_issue(key: str) -> Document:
            return ask_service(f"{url}/issues/{quote(key)}")

        @tool(effect="read", deadline=2, wait_s=60)
        def kb_search(query: str) -> Document:
            return ask_service(f"{url}/articles?query={quote(query)}")

        @tool(effect="write", query=find_message if asks else None, deadline=2, wait_s=60)
        def send_message(channel: str, text: str) -> Document:
            return ask_service(f"{url}/messages", {"channel": channel, "text": text}, current_tool_key())

        self.jira_get_issue, self.kb_search, self.send_message = jira_get_issue, kb_search, send_message


def ask_service(url: str, message: Document | None = None, key: str | None = None) -> Document:
    """GET a document, or POST a message under a key."""
    body = None if message is None else json.dumps(message).encode()
    with urlopen(Request(url, body, {"Idempotency-Key": key or ""}), timeout=10) as answer:
        document: Document = json.load(answer)
        return document


def open_session(
    client: SessionClient, session_id: str, *, data_classes: Sequence[DataClass] = (), limits: Limits | None = None
) -> Session:
    """Return the session of this id, active: that of a killed process, or a new session.

    `data_classes` and `limits` apply to a new session.
    """
    try:
        session = client.attach(session_id, take_over=True)
    except SessionLost:
        try:
            session = client.create(session_id=session_id, user_id="ada", data_classes=data_classes, limits=limits)
        except SessionExists:  # a killed process had created it: the event came from its spool only now
            session = client.attach(session_id, take_over=True)
    if session.local_state == "Idle":
        session.start()
    elif session.local_state == "Timeout":
        session.resume()
    return session


def triage(session: Session, tools: Tools, issue_key: str) -> Document:
    """Inform the team of an issue. Finished steps are not repeated."""
    run_id = str(uuid.uuid5(uuid.UUID(session.session_id), issue_key))
    given = {"issueKey": issue_key}
    with session.run("triage", run_id=run_id, input=given, plan=PLAN, mode="detached", resume=True) as run:
        issue = run.step("fetch_issue", tools.jira_get_issue, issue_key)
        found = run.step("search_kb", tools.kb_search, issue["title"])
        text = f"{issue['key']}: {issue['title']}. See: {found['articles'][0]}"
        run.result = run.step("notify_team", tools.send_message, issue["team"], text)
    result: Document = run.result
    return result


def main(url: str, session_id: str, issue_key: str) -> None:
    """Work on one issue in one session, from the point that an earlier process reached."""
    with SessionClient(tenant_id="acme", service_id="support", agent_id="triage") as client:
        print("session", session_id)
        try:
            session = open_session(client, session_id)
        except (Rejected, SessionEnded) as rejection:  # an ended session cannot be taken over
            print(f"nothing to do: {rejection}")
            return
        sent = triage(session, Tools(url), issue_key)
        print("message", sent["message_id"], "to", sent["channel"])
        session.complete("informed the team")


if __name__ == "__main__":
    main(*sys.argv[1:])
