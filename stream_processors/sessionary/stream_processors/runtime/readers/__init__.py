"""Who reads a partition's committed state, and waits for it to change.

commit_news    wakes readers: of any commit, or of the commits that touch one row
"""
