"""The machine of messages: the turns of a session's conversation.

    facts          what can happen to the row of a turn
    judge          the judgement of a message
    machine        the rows as a `Machine`

The judge numbers the turns of a session in the order of the log. So many of the last ones have a
row as `CONVERSATION_TURNS_MAX` says: a later turn takes the row of the oldest. The session's
machine asks `judge`, after neither the session nor the run has anything against the event. A turn
has no clock, no state but its content, and vanishes with its session.
"""
