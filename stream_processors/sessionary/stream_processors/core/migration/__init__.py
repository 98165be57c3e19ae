"""A session that moves to another service: a part of the session's row, and its own rules.

transitions   what each step does to the session, and how long an offer may stand
facts         what can come of an event, or of the end of an offer
judge         who may send which step, and what it comes to
effects       what a fact changes in the session's row
report        what it leaves in the audit trail, and asks the target and the former owner for
"""
