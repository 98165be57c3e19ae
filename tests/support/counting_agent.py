"""An agent in a process of its own: it counts in the content of a session that others count in."""

import json
import sys

from sessionary.producers import SessionClient, VersionConflict


def main() -> None:
    """Count in the session of the arguments, under the agent's id; print what it saw as JSON.

    That is how often it was late, and the content in the version of the last argument, which all
    agents together reach.
    """
    session_id, agent_id, times, last_version = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    late = 0
    with SessionClient(tenant_id="acme", service_id="counting", agent_id=agent_id) as client:
        session = client.attach(session_id)
        session.agents.get(agent_id, "writer")
        for _ in range(times):
            while True:
                try:
                    session.update_state({**session.state, agent_id: session.state.get(agent_id, 0) + 1})
                    break
                except VersionConflict:  # `session.state` is the newest content now
                    late += 1
        seen = next(view for view in client.follow(session) if view.version >= last_version)
        session.lifecycle.detach()
    sys.stdout.write(json.dumps({"late": late, "version": seen.version, "content": json.loads(seen.state_json)}) + "\n")


if __name__ == "__main__":
    main()
