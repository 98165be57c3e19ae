"""Work that is recorded before it is done, so that a crash repeats nothing that took effect.

First the public modules, then their parts:

    run_block        `session.run`: one run of a task
    run_items        checkpoints, and lists that a run works through
    checkpoints      checkpoints with data: saved and loaded
    run_steps        the steps of one run, each recorded
    run_resume       how an interrupted run is resumed
    resume_plan      the work a run has done, and the effect of resuming it
    tool             `tool`: a decorator that makes calls recorded ones
    reserved_call    one call: reserve its key, call, record the outcome
    recorder         acknowledged events, and the processor's knowledge of them
    errors           runs that cannot continue, calls that are not made
    flow             work as a generator, for threads and for asyncio
    large_values     values that are too large for events, kept as artifacts
    call_keys     idempotency keys of calls, and canonical JSON (RFC 8785); pure
"""
