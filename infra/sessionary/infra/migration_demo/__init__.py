"""Runs the example of a moving session against a stack, kills one of its services, and reports.

    play        the whole of it: a person approves, the session moves, its owner is killed
    trail       pure: what happened in the session, in order, and what must never happen
    queries     what ClickHouse is asked of the session
    report      the trail and the figures, from the rows in ClickHouse

`sessionary demo --migration` calls `play_migration`.
"""
