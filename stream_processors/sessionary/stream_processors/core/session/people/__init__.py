"""What people do to a session: who speaks for it, and the questions that it waits with.

operators   which events are an operator's
snapshots   the committed state of a row as a snapshot
questions   a question that a session waits with, and its answer
"""
