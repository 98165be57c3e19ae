"""Runs that ask for their tenant's quota.

    admission    a run begins, or goes on, once it is admitted

What a run does then is in `run_block`.
"""
