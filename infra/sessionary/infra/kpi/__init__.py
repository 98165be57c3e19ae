"""The lag exporter's metrics beyond lags: key figures, integrity, disks, artifacts and bytes.

    question_watch      repeats a question on a dedicated thread
    key_figures         key figures, free space, bytes of tenants, overdue artifacts
    integrity           the number of findings of `v_integrity`
    collector           asks all questions in the background, and hands the answers to a scrape
    metrics             the list of these metrics, and their values

Nothing is asked at a scrape. A series exists only while its value is known.
"""
