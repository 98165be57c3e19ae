"""What the lag exporter serves beyond lags: key figures, integrity, disks, artifacts and bytes.

    question_watch      asks a question again and again on a thread of its own
    key_figures         key figures, free space, bytes of tenants, overdue artifacts
    integrity           how many findings `v_integrity` has
    collector           asks all of it in the background, and hands it to a scrape
    metrics             the list of these metrics, and their values

Nothing is asked at a scrape. A series exists only while its value is known.
"""
