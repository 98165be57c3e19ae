"""Who reads a partition's committed state, and waits for it to change.

None of them changes anything; the partition's owner wakes them.

    commit_news    wakes readers: of any commit, or of the commits that touch one row
"""
