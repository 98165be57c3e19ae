"""A session that moves to another service: a part of the session's row, with rules of its own.

    transitions   what each step does to the session, and how long an offer may stand
    judge         who may send which step, and what it comes to
    ownership     a new owner, and the clean-up of the former one
    effects       what a fact changes in the session's row
    report        the audit records, and the requests to the target and the former owner

The facts are with the session's own.
"""
