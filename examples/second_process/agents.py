"""Two processes work on one session: its owner and a helper.

python -m examples.second_process.agents
"""

import subprocess
import sys

from sessionary.producers import SessionClient


def start_helper(session_id: str) -> int:
    """Run the helper as a separate process, and wait for it."""
    return subprocess.run([sys.executable, "-m", "examples.second_process.agents", session_id], check=False).returncode


def count_words(text: str) -> int:
    """Stand in for work that deserves a separate process."""
    return len(text.split())


def help_session(session_id: str) -> None:
    """Work on the session of another process, and leave it open."""
    with SessionClient(tenant_id="acme", service_id="press", agent_id="counter") as client:
        session = client.attach(session_id)
        session.activity("tool", "counting words")
        words = count_words(session.state["text"])
        session.update_state({**session.state, "words": words})
        session.sync()  # the processor has judged the update
        session.lifecycle.detach()  # leaving a `with` block would end the session for both


def main() -> None:
    """Own the session: start it, run the helper, end it."""
    with (
        SessionClient(tenant_id="acme", service_id="press", agent_id="editor") as client,
        client.session(user_id="ada", state={"text": "to be or not to be"}) as session,
    ):
        print("session", session.session_id)
        session.sync()  # the helper can find the session from here on
        if start_helper(session.session_id) != 0:
            raise RuntimeError("the helper failed")
        session.sync()  # adopt the helper's changes
        print(session.state["words"], "words, in version", session.version)
        session.update_state({**session.state, "printed": True})
        session.complete("printed")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        help_session(sys.argv[1])
    else:
        main()
