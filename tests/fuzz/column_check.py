"""Columns that a native build makes of events' bytes, compared with those made of rows."""

from sessionary.sinks.core.rows.event_columns import find_encoder
from sessionary.sinks.core.rows.shared import RawRecord, TableRow
from tests.core.sinks.samples import history_block

_ROWS = 200  # compared at a time


class ColumnCheck:
    """Compares what the encoder takes, many rows at a time. The Python build has no encoder."""

    def __init__(self) -> None:
        self._encoder = find_encoder(history_block().given_columns)
        self._made, self._rows = history_block(), list[TableRow]()
        self.taken = 0

    @property
    def has_encoder(self) -> bool:
        """Whether the build has an encoder."""
        return self._encoder is not None

    def add_row(self, raw: RawRecord, row: TableRow) -> None:
        """Encode a record, whose row is given. Raises `AssertionError` if columns differ."""
        if self._encoder is None:
            return
        taken, pieces = self._encoder.encode([raw], 0, 1)
        if taken:
            self.taken += 1
            self._made.add_pieces(1, pieces)
            self._rows.append(row)
            if len(self._rows) == _ROWS:
                self.compare()

    def compare(self) -> None:
        """Compare the rows so far. Raises `AssertionError`."""
        wanted = history_block()
        assert wanted.add_rows(self._rows) == []
        assert self._made.to_bytes() == wanted.to_bytes()
        self._made, self._rows = history_block(), []
