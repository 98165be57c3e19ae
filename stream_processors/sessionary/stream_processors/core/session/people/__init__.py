"""What people do to a session.

    operators   which events are an operator's
    snapshots   the committed state of a row as a snapshot
    questions   a question that a session waits with, and its answer

They know no facts and no transitions, which ask them.
"""
