"""Request bodies are decoded whole, or refused."""

from __future__ import annotations

import gzip
import zlib

import lz4.frame
import pytest
from backports import zstd

from sessionary.infra.local.clickhouse.request_bodies import decompress_body
from sessionary.infra.local.errors import EngineError

_FRAMES = [b"first " * 1000, b"second " * 1000, b"", b"third"]


@pytest.mark.parametrize(
    ("encoding", "packed"),
    [
        (None, b"".join(_FRAMES)),
        ("lz4", b"".join(lz4.frame.compress(part) for part in _FRAMES)),
        ("gzip", b"".join(gzip.compress(part) for part in _FRAMES)),
        ("zstd", b"".join(zstd.compress(part) for part in _FRAMES)),
        ("deflate", zlib.compress(b"".join(_FRAMES))),
    ],
)
def test_all_frames_of_a_body_are_decoded(encoding: str | None, packed: bytes) -> None:
    assert decompress_body(packed, encoding) == b"".join(_FRAMES)


@pytest.mark.parametrize("encoding", ["lz4", "gzip", "zstd", "deflate"])
def test_cut_and_damaged_bodies_are_errors(encoding: str) -> None:
    packer = {"lz4": lz4.frame.compress, "gzip": gzip.compress, "zstd": zstd.compress, "deflate": zlib.compress}
    whole = packer[encoding](b"row" * 5000)
    for broken in (whole[:-5], b"not packed at all"):
        with pytest.raises(EngineError) as caught:
            decompress_body(broken, encoding)
        assert caught.value.code == 271


def test_an_unknown_encoding_is_an_error() -> None:
    with pytest.raises(EngineError) as caught:
        decompress_body(b"x", "rar")
    assert caught.value.code == 89
