"""Policy `spool`: events wait in files until Kafka has them, also after their process died.

From the transport down to the bytes:

    transport   appends each event to the spool, sends it, replays what a dead process left
    spool       the queue of this process's events, and that of dead processes
    orphans     finds, locks and reads what dead processes left
    frame_queue  segments in order, with a read cursor
    segment     one memory-mapped file
    frames      the bytes of a file, and how frames are found behind damage
    inspection  what lies in the folders, for people
    file_lock   the lock that says whether a process lives
"""
