"""The operators' pages of the control API; all need the role operator.

    partitions        partitions' states, a new start for a halted one, decisions
    rules             the rules in force, and newer ones' activation
    people            people step in: pause, resume, cancel; answers to questions
    migrations        people let sessions change their service: migrations, claims
    session_events    an event of a person: sent, judged, answered
    event_sender      appends it to the events topic
    openapi           what the API's document says of people's pages

A worker answers for itself, and asks the other workers of its group.
"""
