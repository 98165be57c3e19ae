"""Three steps of a workflow that share a shopping list, each a process of its own.

python -m tests.support.shopping_list plan|read|clear SESSION_ID
"""

import sys

from sessionary.producers import SessionClient

ITEMS = ["milk", "bread"]


def main(step: str, session_id: str) -> None:
    """Do one step."""
    with SessionClient(tenant_id="acme", service_id="shop", agent_id=step) as client:
        if step == "plan":
            session = client.create(session_id=session_id, user_id="ada", state={"shopping_list": []}).start()
            session.update_state({"shopping_list": ITEMS})
        else:
            session = client.attach(session_id)
        if step == "read":
            with session.run("read") as run:
                run.result = run.step("read_list", lambda: session.state["shopping_list"])
            sys.stdout.write(f"{' '.join(run.result)}\n")
        if step == "clear":
            session.update_state({"shopping_list": []})
            session.complete("bought")


if __name__ == "__main__":
    main(*sys.argv[1:])
