"""The lag of consumer groups behind their topics.

    lag_tracker         samples of a cluster, and the resulting lag of groups; pure
    lag_monitor         asks Kafka for samples, and for the first records behind groups
    exporter            samples periodically, and serves the metrics
    metrics             the metrics of the lag, and the delays of rows

A lag is counted from the offset that the group has committed. A partition without one counts in
full. A partition whose log has only transaction markers after the committed offset has no lag.
"""
