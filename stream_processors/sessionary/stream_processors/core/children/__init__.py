"""Rows that belong to another row and vanish with it: steps of a run, calls of a run or a session.

    index      the keys of all children, by the key of their parent
    naming     which child an event names
    row_size   the size of a child's row; its content apart

The key of a child is its parent's, and a suffix of fixed length. What may happen to children is in
`step` and `call`.
"""
