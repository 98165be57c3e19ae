"""An agent that asks a model for a plan and carries it out, until it is killed in a step."""

import json
import signal
import sys

from sessionary.producers import Json, SessionClient

# By how often the run has planned before: the second plan is made as `search` of the first is gone.
PLANS = {None: ["collect", "search", "write"], "search": ["collect", "look up", "write"]}


def say(*words: str) -> None:
    sys.stdout.write(" ".join(words) + "\n")
    sys.stdout.flush()


def ask_model(failed_step: str | None) -> Json:
    say("asked for a plan without", f"{failed_step}")
    return list(PLANS[failed_step])


def carry_out(name: str, waits_in: str) -> str:
    say("does", name)
    if name == waits_in:
        signal.pause()
    if name == "search":
        raise LookupError("the tool search is gone")
    return f"done {name}"


def main() -> None:
    """Begin the run of the session of the first argument, or go on with it.

    In the step of the second argument it waits to be killed; `-`: in none. Says when it asks for a
    plan and which step it does; at last the run's result.
    """
    session_id, waits_in, is_first = sys.argv[1], sys.argv[2], sys.argv[3] == "first"
    with SessionClient(tenant_id="acme", service_id="planning", agent_id="planner") as client:
        if is_first:
            session = client.create(session_id=session_id, user_id="u").start()
        else:
            session = client.attach(session_id, take_over=True)
        with session.run("report", run_id="r", resume=True) as run:
            plan, done = run.plan(ask_model, None), {}
            while left := [step for step in plan if step not in done]:
                try:
                    done[left[0]] = run.step(left[0], lambda step: carry_out(step, waits_in), left[0])
                except LookupError as error:
                    plan = run.plan(ask_model, left[0], failed=error)
            run.result = [done[step] for step in plan]
        session.lifecycle.detach()
    say(json.dumps(run.result))


if __name__ == "__main__":
    main()
