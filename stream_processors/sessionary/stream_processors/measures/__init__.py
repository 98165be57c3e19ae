"""What a worker knows of itself, for its metrics and its health.

    log_lag        how far open partitions are behind their logs, in records and in time
    worker_gauges  the gauges that are read when the metrics are
    row_census     counts the rows of partitions that have opened
    core_build     which build of the rules runs: compiled, or Python
    interpreter_build    how the interpreter was built: with PGO, LTO, both or neither
    hang_watch     ends the process if a part of it hangs
    open_transactions    tells which partitions an open transaction of another producer holds up

All of it belongs to the event loop, but for the watch for parts that hang, which has a thread.
"""
