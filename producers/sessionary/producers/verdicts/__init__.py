"""What the processor decides, as far as a client knows it: before it sends, and afterwards.

In the order in which an event passes:

    local_checks     what is certain to be rejected, by the judge's own rules
    notifications    notifies the user's callbacks what was found
    session_watch    asks the control API about all sessions of a client, on a thread of its own
"""
