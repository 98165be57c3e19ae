"""The role quotas: it admits runs and sessions by their tenants' limits.

    verdict_sender   the job of the role: judges claims, and sends verdicts
    settings      settings of the role, and the file of limits

It is a worker like a processor, over another topic: it writes its rows and its position in its own
transactions. Verdicts are outside of them: readers of events wait for no other log.
"""
