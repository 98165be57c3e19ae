"""Records on their way from the broker to their partition's owner.

    fetched_records    messages of librdkafka as records of their partitions
    fetcher            fetches with librdkafka, delivers on the event loop
    pending_records    fetched records of one partition that wait to be folded

Nothing here knows an owner: it is told where to deliver.
"""
