"""Policy `spool`: events wait in files until Kafka has them, also after their process died.

From the transport down to the bytes:

    transport   appends each event to the spool, sends it, replays what a dead process left
    spool       the queue of segments, with a read cursor
    segment     one memory-mapped file and the frames in it
"""
