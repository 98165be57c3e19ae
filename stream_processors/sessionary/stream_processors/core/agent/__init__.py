"""The machine of agents: the tasks of a session's agents, and what they share.

    facts          what can happen to an agent
    views          which agents' results an agent sees, by roles
    judge          the judgement of an event of an agent
    machine        the rows as a `Machine`

The session's row lists its agents: their services are members of the session, and verdicts on one
agent need no other agent's row. An agent has a row of its own with its tasks and what it shares, so
that other events do not write these. The session's machine asks `judge`, after neither the session
nor the run has anything against the event. An agent has no clock, and vanishes with its session.
"""
