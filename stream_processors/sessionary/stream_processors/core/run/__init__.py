"""Runs: what may happen to a run, how its events are judged, and its rows.

    transitions    every transition of a run as one value
    judge          the judgement of an event that names a run
    changes        what happens to a run: its row afterwards, and what its session hears
    rows           rows of runs, and their clock

The session's judge asks `judge`, after the session itself has nothing against the event. Begin with
`transitions`.
"""
