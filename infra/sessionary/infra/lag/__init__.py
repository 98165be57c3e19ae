"""How far consumer groups are behind their topics.

    cluster_sample      what Kafka says about groups, logs and unread records at one time; pure
    group_topics        which groups belong to a pipeline, and which topics they read; pure
    partition_state     judges a partition by its last observations: Burrow's rules; pure
    lag_tracker         turns samples into lags, rates and states; pure
    group_lag           sums up a group, and says whether its lag is a fault; pure
    cluster_sampler     asks Kafka for a sample
    first_records       reads the first record that a group has not read
    row_delays          asks ClickHouse how long events took to become rows
    lag_monitor         takes a sample and tracks it; what the commands and the exporter use
    metrics             the list of the exporter's metrics, and their values
    exporter            samples in the background, and serves the metrics

A lag is counted from the offset that the group has committed. A partition without one counts in
full. A partition whose log holds nothing but transaction markers after the committed offset has no
lag.
"""
