"""Processes that measurements start beside the pipeline.

    sender               sends events at a fixed rate, and records when
    reader               reads committed records, and records when
    transactional_hop    the baseline of a latency: reads, passes on, commits in one transaction
    emitting             measures the cost of a client's call for its agent
    emit_of_tree         the same, of the client of any commit
    replaying            measures the rate at which a dead process's spool is sent
    beating              measures the cost of the heartbeats of many sessions
    following            notes the times at which followers in other processes have each update
    migrating            moves sessions to another process while their agents work
    idling               has sessions that are open and silent, and takes those that migrate to it
    quix_app             the configuration of the programs on Quix Streams
    run_quix_core        the processor's pure core in Quix Streams

Each program documents its arguments.
"""
