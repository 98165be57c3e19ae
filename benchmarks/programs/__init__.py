"""Processes that measurements start beside the pipeline.

    sender               sends events at a fixed rate, and records when
    reader               reads committed records, and records when
    transactional_hop    the baseline of a latency: reads, passes on, commits in one transaction
    emitting             measures what a call of the client costs its agent
    emit_of_tree         the same, of the client of any commit
    replaying            measures how fast a dead process's spool is sent
    beating              measures what the heartbeats of many sessions cost
    following            notes when followers in other processes have each update
    migrating            moves sessions to another process while their agents work
    idling               has sessions that are open and silent, and takes those that migrate to it
    quix_app             how the programs on Quix Streams are configured
    run_quix_core        the processor's pure core in Quix Streams

Each program documents its arguments.
"""
