"""Small records that schemas of one subject share.

    run          open runs and checkpoints
    agent        agents of a session, and what they share
    quota        claims to quotas
    migration    a session's migration to another service
    fencing      clients that were fenced off
    question     a question to a person, and its answer
    partition    what was decided about a partition
    rules        the rules that a partition is judged by

`types` has them all.
"""
