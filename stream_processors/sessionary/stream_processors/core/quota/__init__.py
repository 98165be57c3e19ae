"""The quotas of tenants: which claims of a tenant are admitted.

    limits     a tenant's limits, as an operator sets them
    claims     the claims to one quota: requested, admitted in order, taken, released
    judge      all of it as a `Judge`, and its rows

Its log is the topic of quotas; sessions write to it in their own transactions.
"""
