"""How far consumer groups are behind their topics.

    lag_tracker         samples of a cluster, and the lag of groups that follows from them; pure
    lag_monitor         asks Kafka for samples, and for the first records behind groups
    exporter            asks again and again, and serves the metrics
    metrics             the metrics of the lag, and how late rows are

A lag is counted from the offset that the group has committed. A partition without one counts in
full. A partition whose log holds nothing but transaction markers after the committed offset has no
lag.
"""
