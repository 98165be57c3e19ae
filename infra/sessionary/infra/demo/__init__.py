"""Plays recorded agent runs as sessions against a stack, and accounts for every event afterwards.

runs.py      reads the NDJSON of recorded runs (a sample of 60 ships beside it)
plan.py      pure: which session does what, and when
play.py      carries a plan out with the client
raw.py       broken events, which no client would send
accounts.py  the run's own books in ClickHouse: planned sessions and journal
drain.py     waits until the pipeline has nothing left to do for the run
report.py    the figures, computed by ClickHouse from rows
"""
