"""Sessions that migrate to a client; what the session itself does is in `session.migration`.

In the order in which a session passes:

    acceptor         answers the requests for one service: loads sessions, and accepts them
    hand_over        calls the program's function with a session that has arrived
"""
