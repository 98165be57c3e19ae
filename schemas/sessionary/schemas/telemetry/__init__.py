"""What the server roles share to be observed. Their extras bring what it needs.

No module of a client imports this package, because a client logs with the standard library.

    role_logs       the lines that a role writes about itself: as JSON, or as text for people
    repeat_limiter  which of many repeated lines are written; pure
"""
