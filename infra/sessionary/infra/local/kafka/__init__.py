"""The local Kafka: one broker, or a cluster of three.

    jars      the broker's jars, from a Maven repository into jgo's cache
    node      one Kafka node (KRaft) over a folder: its files and its command line
    cluster   three nodes: their folder, and each as a process
    broker    a node alone, as a child process or in the foreground

Brokers listen on loopback only.
"""
