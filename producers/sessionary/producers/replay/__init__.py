"""Replay: an agent's own code over the record of a session, in which nothing is executed.

In the order in which a replay works:

    record        reads a session's events, and folds them again up to a point
    calls         the calls in a record: their keys, and which of them the record can answer
    kept_texts    results of which the record has only the text
    answers       answers the agent's calls, and counts what was served, missed and blocked
    script        compares the events of a replay with those of the record, one by one
    replay        `SessionClient.replay`: the block in which the agent's code runs
    async_replay  the same for asyncio
    simulate      folds a log with another result in one event
    errors        why a replay stops
"""
