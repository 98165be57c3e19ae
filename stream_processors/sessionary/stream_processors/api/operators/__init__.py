"""The operators' pages of the control API; all need the role operator.

    partitions        partitions' states, a new start for a halted one, decisions
    rules             the rules in force, and newer ones' activation
    worker_facts      what a worker tells of itself: release, clock, disk

A worker answers for itself, and asks the other workers of its group.
"""
