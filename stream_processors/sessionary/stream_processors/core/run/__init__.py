"""Runs: their transitions, the judgement of their events, and their rows.

    transitions    every transition of a run as one value
    judge          the judgement of an event that names a run
    changes        changes of a run: its row afterwards, and the facts for its session
    rows           rows of runs, and their clock

The session's judge asks `judge` once the session itself has accepted the event. Begin with
`transitions`.
"""
