"""Small records that several schemas share, by what they are of.

    quota       claims to a tenant's quota
    question    a question to a person, and its answer
    partition   what was decided about a partition

`types` has them all, beside those that are of no such kind.
"""
