"""A session that waits until its tenant's quota admits it.

    claims    what moves its claim to a slot, and who is told

When it is given up is in the session's `clocks`.
"""
