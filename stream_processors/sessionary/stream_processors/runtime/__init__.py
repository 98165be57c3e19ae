"""Kafka around the core.

In the order in which a record passes:

    faust_transport    the membership of the group: rebalances, heartbeats, the group's offsets
    assignment         the partitions that this worker owns, and their owners
    partition_owner    one partition during one assignment: open, fold, commit, end
    open_batch         a batch before its transaction; ticks alone may wait
    changelog          reads a partition's changelog when it opens
    log_identity       which topics a partition's logs are: a topic made anew is another one
    log_probe          asks the broker what a partition's log holds
    job                the work on a partition: its fold, its rows, its outputs
    transaction        writes the results of a batch in one transaction
    ticker             appends ticks, so that time passes in silence
    watchdog           finds partitions that are stuck, and logs that lost folded records
    worker_context     the parts that the owners of a worker share
    executor           runs blocking calls that may never return
    decisions          decisions about a halted partition: skips, gaps, truncations, clocks
    audit_log          reads a partition's audit trail
    rebuild            rebuilds the rows of a partition whose changelog cannot be trusted
    past_log           reads what a session's state at a point is folded from
    pending_records    records between fetching and folding: read, pending, counted
    fetcher            fetches the logs of the owned partitions
"""
