"""What a worker knows of itself, for its metrics and its health.

    worker_gauges  the gauges of a worker: lag, rows, memory; counts the rows
    core_build     which core runs, Python or compiled, and how the interpreter was built
    hang_watch     ends the process if a part of it hangs
    open_transactions    tells which partitions an open transaction of another producer holds up

All of it belongs to the event loop, but for the watch for parts that hang, which has a thread.
"""
