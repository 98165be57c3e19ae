"""What the rows that depend on a session share: its runs, and the children of both.

    machine         what their machines have in common
    row_size        the size of a row; its content apart
    limited_row     the times of a row with a limit, after repairs of the clock
    child_index     the keys of the rows that vanish with another one, by the key of that
    child_naming    which child an event names

A *child* is a step of a run, a call or an artifact of a run or a session, or a turn of a session's
conversation. Its key is its parent's, and a suffix of fixed length; it vanishes with its parent.
What may happen to a row is in `run`, `step`, `call`, `artifact` and `message`.
"""
