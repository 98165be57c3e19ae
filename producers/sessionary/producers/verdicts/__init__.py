"""The processor's decisions, as far as a client knows them: before it sends, and afterwards.

In the order in which an event passes:

    local_checks     events that are certain to be rejected, by the judge's own rules
    begun_work       runs and children for which there is no room, counted by the client
    notifications    notifies the user's callbacks of findings
    session_watch    asks the control API about all sessions of a client, on a dedicated thread
"""
