"""What the lag exporter serves beyond lags: key figures, integrity, disks, artifacts and bytes.

    question_watch      asks a question again and again on a thread of its own
    key_figures         the key figures of the last time
    integrity           how many findings `v_integrity` has
    disk_space          how full ClickHouse's disks are
    overdue_artifacts   how many artifacts should have been swept
    tenant_bytes        how many bytes the largest tenant stores
    metrics             the list of these metrics, and their values
    collector           asks all of it in the background, and hands it to a scrape

Nothing is asked at a scrape. A series exists only while its value is known.
"""
