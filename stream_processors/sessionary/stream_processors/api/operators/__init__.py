"""The operators' pages of the control API; all need the role operator.

    partitions        partitions' states, a new start for a halted one, decisions
    rules             the rules in force, and newer ones' activation
    session_events    operators' actions on sessions, as events: pause, cancel, claim, move …

A worker answers for itself, and asks the other workers of its group.
"""
