"""Rows of the table `history` as pieces of its columns, made of the events' bytes at once; pure.

Only a native build can do that, by an extension of this name (`native/event_columns.pyx`); it makes
no object of a value. This Python does nothing: then all rows are built one by one.
"""

from collections.abc import Sequence

from sessionary.sinks.core.rows.shared import RecordEncoder


def find_encoder(columns: Sequence[tuple[str, str]]) -> RecordEncoder | None:
    """Return an encoder for columns of these names and types; None if there is none."""
    del columns
    return None
