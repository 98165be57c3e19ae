"""Faust agents of users next to the partitions, and the table of sessions that they read.

    agents            loads a user's agents and checks their topics
    sessions_table    the table of sessions for users' agents, of the partitions that a worker owns
    stream_transport  the membership of the group with agents, whose topics are fetched too

A worker without agents loads only the table.
"""
