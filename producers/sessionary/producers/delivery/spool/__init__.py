"""Policy `spool`: events wait in files until Kafka has them, also after their process died.

From the transport down to the bytes:

    transport   appends each event to the spool, sends it, replays those of dead processes
    spool       the queue of this process's events, and that of dead processes
    orphans     spools that a process left: adopts them, and describes them
    labels      which cluster a spool's folder is for
    segment     one mapped file of the spool, and its frames
    file_lock   the lock that says whether a process lives
"""
