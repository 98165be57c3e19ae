"""Verbs of a session that involve others. Each adds to those before it.

    asking        questions to people, and their answers
    agent_verbs   the session's agents, and updates of the content that lose none
    migration     the verb `migrate`, and what the session of a target sends
    admission     a session waits for its tenant's quota before it starts
    errors        a migration that did not come about

`Session` has them all.
"""
