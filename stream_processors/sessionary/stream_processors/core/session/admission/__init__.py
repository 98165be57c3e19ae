"""A session that waits until its tenant's quota admits it, and uses its tenant's tokens.

    claims    what moves its claim to a slot, and who is told
    tokens    who is told of the tokens that its events use

When it is given up is in the session's `clocks`.
"""
