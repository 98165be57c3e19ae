"""How many rows a partition has, and a checksum of them: tells if its changelog lost some; pure.

The checksum is the sum of the rows' CRC-32, so that it follows a row that changes without a look at
the others, and does not depend on their order. A content that is stored apart from its row counts
as a row.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple
from zlib import crc32

CHECKSUM_MASK = (1 << 63) - 1  # a `long` of the position record


class RowSum(NamedTuple):
    """The rows of a partition: their number, and the sum of their CRC-32 modulo 2**63."""

    rows: int = 0
    checksum: int = 0

    def replace_rows(self, rows: Mapping[bytes, bytes | None], former: Callable[[bytes], bytes | None]) -> "RowSum":
        """Return the sum after `rows` were written; None deletes.

        `former` returns the bytes under a key before that.
        """
        count, checksum = self
        for key, stored in rows.items():
            if (before := former(key)) is not None:
                count -= 1
                checksum -= crc32(before, crc32(key))
            if stored is not None:
                count += 1
                checksum += crc32(stored, crc32(key))
        return RowSum(count, checksum & CHECKSUM_MASK)


def sum_rows(rows: Iterable[tuple[bytes, bytes]]) -> RowSum:
    """Return the sum of all rows, given by key and bytes."""
    count = checksum = 0
    for key, stored in rows:
        count += 1
        checksum += crc32(stored, crc32(key))
    return RowSum(count, checksum & CHECKSUM_MASK)
