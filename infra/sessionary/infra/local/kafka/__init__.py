"""The local Kafka: one broker, or a cluster of three.

    node      one Kafka node (KRaft) over a folder: its files and its command line
    cluster   a broker, or three of them

Brokers listen on loopback only.
"""
