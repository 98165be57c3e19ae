"""Verdicts and states from the processor, and clean-up requests from it.

First the way of a verdict, then that of a request:

    http_control        asks the control API for a session and for the verdict on an event
    http_runs           asks it for runs, their steps and their tool calls
    http_follows        opens streams of sessions' states there, and reads them
    request_consumer    reads the requests for this service from Kafka, commits answered ones
    kafka_record        reads the log of a session's events from Kafka, for a replay
    cleanup_responder   answers clean-up requests; finds the data classes of their sessions
"""
