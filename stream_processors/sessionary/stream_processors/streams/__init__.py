"""Faust agents of users beside the partitions, and the table of sessions that they read.

    agents            loads a user's agents and checks their topics
    sessions_table    the table `sessions`, as Faust's users know tables
    stream_transport    the membership of the group with agents, whose topics are fetched too
    local_sessions    the committed sessions of this worker's open partitions, as a mapping

A worker without agents loads none of it but the table.
"""
