"""An agent that continues where its former process died.

python -m examples.crash_and_restart.agent session.txt one two three

The file keeps the session's id. Kill the process at any time, and run the same command again.
"""

import sys
import time
from pathlib import Path

from sessionary.producers import Session, SessionClient, SessionLost


def open_session(client: SessionClient, note: Path) -> Session:
    """Return the session that the note names, ready for work, or a new session."""
    if note.exists():
        try:
            session = client.attach(note.read_text().strip())
        except SessionLost:  # archived meanwhile
            note.unlink()
        else:
            if session.local_state in ("Timeout", "Paused"):  # the former process was silent for too long
                session.resume("after a restart")
            elif session.local_state == "Error":
                session.recover("after a restart")
            if session.local_state == "Active":
                return session
    session = client.session(user_id="ada", state={"done": []})
    note.write_text(session.session_id)
    return session


def handle_letter(letter: str) -> None:
    """Stand in for work that takes a while. The work must be safe to repeat."""
    time.sleep(0.2)


def main(note: Path, letters: list[str]) -> None:
    """Handle each letter that is not done according to the session's content."""
    with SessionClient(tenant_id="acme", service_id="post", agent_id="clerk") as client:
        with open_session(client, note) as session:
            print("session", session.session_id, "done", *session.state["done"])
            for letter in letters:
                if letter not in session.state["done"]:
                    handle_letter(letter)
                    session.update_state({"done": [*session.state["done"], letter]})
                    session.sync()  # from here on the letter is done, even if the process is killed
                    print("handled", letter)
            session.complete("all letters handled")
        note.unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
