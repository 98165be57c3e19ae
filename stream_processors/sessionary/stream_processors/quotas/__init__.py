"""The role quotas: it admits runs and sessions by their tenants' limits.

    settings         settings of one worker
    limits_file      the tenants' limits, read again if the file changes
    verdict_sender   verdicts, sent to the sessions until these have heard
    job              what is done with the partitions of the topic of quotas

It is a worker like a processor, over another topic: its rows, its changelog and its position are
in one transaction of its own. Verdicts are outside of it: who reads events waits for no other log.
"""
