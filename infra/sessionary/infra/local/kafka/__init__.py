"""The local Kafka broker.

    jars      the broker's jars, from a Maven repository into jgo's cache
    broker    one Kafka node (KRaft) over a folder

The broker listens on loopback only.
"""
