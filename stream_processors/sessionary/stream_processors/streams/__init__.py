"""Faust agents of users beside the partitions, and the table of sessions that they read.

    agents            loads a user's agents and checks their topics
    sessions_table    the table `sessions`, as Faust's users know tables
    local_sessions    the committed sessions of this worker's open partitions, as a mapping

`runtime/stream_transport` brings the agents their records.
"""
