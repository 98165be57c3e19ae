"""Runs the workflow example against a stack, kills it in the middle, and shows how it goes on.

    report      what was done, what was skipped and why, from the rows in ClickHouse
    play        the whole of it

`sessionary demo --workflow` calls `play`.
"""
