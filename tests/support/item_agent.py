"""An agent that works through a list of twelve items, item by item, until it is killed in one."""

import json
import signal
import sys

from sessionary.producers import SessionClient

ITEMS = [f"item-{number}" for number in range(1, 13)]


def main() -> None:
    """Begin the run of the session of the first argument, or go on with it.

    In the item of the second argument it waits to be killed; 0: in none. Prints each item that it
    begins, at last the run's result.
    """
    session_id, waits_in = sys.argv[1], int(sys.argv[2])
    with SessionClient(tenant_id="acme", service_id="analysis", agent_id="analyst") as client:
        if waits_in:
            session = client.create(session_id=session_id, user_id="u").start()
        else:
            session = client.attach(session_id, take_over=True)
        with session.run("analyse", run_id="r", resume=True) as run:
            analyses = run.items(ITEMS, name="analyse")
            for item in analyses:
                sys.stdout.write(f"{item}\n")
                if ITEMS.index(item) + 1 == waits_in:
                    signal.pause()
                analyses.results.append(f"analysis of {item}")
            run.result = analyses.results
            place = session.load_checkpoint("analyse")
        session.lifecycle.detach()
    sys.stdout.write(json.dumps({"result": run.result, "place": place}) + "\n")


if __name__ == "__main__":
    main()
