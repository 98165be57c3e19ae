"""The processor: folds the events of a pipeline into session state, and fires deadlines.

In the order in which a record passes:

    __main__     `python -m sessionary.stream_processors`: a worker, configured by the environment
    process      a worker as a process: its start, and the signals that end it
    worker       one worker: its parts, its tasks, its end
    startup      the steps of a process before its worker joins the group
    group_members  the members of the group as Kafka names them: names, hosts, secrets
    faust_app    Faust's app: the group's member and the web server
    runtime/     Kafka around the core: assignment, fetching, transactions, ticks
    core/        the rules, pure: partitions, clocks and timers, verdicts, the audit trail
    store/       where rows live between transactions
    api/         the control API: committed state, health and operators' commands, over HTTP
    streams/     Faust agents of users in the same worker, and the table of sessions for them
    settings     a worker's settings, from `SESSIONARY_*`
    signing_keys  the file of the signing keys, read again when it changed
    access       the callers of the control API: tokens, principals and roles
    metrics      a worker's Prometheus metrics
    errors       a worker's errors, by their consequence
    rules_change  the change of a partition's rules
    record_spans  the spans of judged records, after their commit
    quotas/      the role quotas: a worker of the same kind, which admits runs
    security     the credentials of the group's member, from those of a worker's clients
    core_build   which core runs, Python or compiled, and how the interpreter was built
    worker_gauges  the gauges of a worker: lag, rows, memory, open transactions
"""
