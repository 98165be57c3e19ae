"""Work that is recorded before it is done, so that a crash repeats nothing that took effect.

First what users see, then what it is made of:

    run_block        `session.run`: one run of a task
    run_items        checkpoints, and lists that a run works through
    run_steps        the steps of one run, each recorded
    run_resume       how a run that was interrupted goes on
    resume_plan      what it has done, and what resuming it would do
    tool             `tool`: a decorator that makes calls recorded ones
    reserved_call    one call: reserve its key, call, record the outcome
    recorder         events that are acknowledged, and what the processor knows
    errors           runs that cannot go on, calls that are not made
    flow             work as a generator, for threads and for asyncio
    large_values     values that are too large for events, kept as artifacts
    call_keys     idempotency keys of calls, and canonical JSON (RFC 8785); pure
"""
