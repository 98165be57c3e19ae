"""The role quotas: it admits runs and sessions by their tenants' limits.

    verdict_sender   the job of the role: judges claims, and sends verdicts
    settings      settings of the role, and the file of limits

It is a worker like a processor, over another topic: its rows, its changelog and its position are
in one transaction of its own. Verdicts are outside of it: who reads events waits for no other log.
"""
