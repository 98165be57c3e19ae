"""The memory that the RocksDB databases of a process share."""

from typing import Any


class RocksMemory:
    """The memory of all databases of a process, however many partitions it owns.

    RocksDB's defaults are 160 MiB for each partition's database.
    """

    CACHE_BYTES_MAX = 64 << 20  # of blocks read from files
    BUFFERS_BYTES_MAX = 256 << 20  # of rows that no file has yet
    _BUFFERS = 2  # of a database: one is filled while the other is written
    _BUFFER_BYTES = range(1 << 20, 16 << 20)

    def __init__(self, partitions: int) -> None:
        """`partitions`: how many databases there may be."""
        from rocksdict import Cache  # an extra that the memory store does not need

        self._cache = Cache(self.CACHE_BYTES_MAX)
        share = self.BUFFERS_BYTES_MAX // (self._BUFFERS * partitions)
        self._buffer_bytes = min(max(share, self._BUFFER_BYTES.start), self._BUFFER_BYTES.stop)

    def database_options(self) -> Any:
        """Return the options of a database that shares this memory."""
        from rocksdict import BlockBasedOptions, Options

        tables = BlockBasedOptions()
        tables.set_block_cache(self._cache)
        options = Options(raw_mode=True)
        options.set_block_based_table_factory(tables)
        options.set_write_buffer_size(self._buffer_bytes)
        options.set_max_write_buffer_number(self._BUFFERS)
        return options
