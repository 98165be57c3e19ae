"""What the rows that depend on a session share: its runs, their steps, and tool calls.

    machine         what their machines have in common
    row_size        the size of a row; its content apart
    limited_row     the times of a row with a limit, after repairs of the clock
    child_index     the keys of the rows that vanish with another one, by the key of that
    child_naming    which step or tool call an event names

A *child* is a step of a run, or a call of a run or a session. Its key is its parent's, and a suffix
of fixed length; it vanishes with its parent. What may happen to a row is in `run`, `step` and
`call`.
"""
