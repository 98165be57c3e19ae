"""Decompresses request bodies by their Content-Encoding. Pure."""

from __future__ import annotations

import gzip
import zlib

import lz4.frame
from backports import zstd

from sessionary.infra.local.errors import EngineError


def _decompress_lz4(body: bytes) -> bytes:
    """Decode all frames. Clients send one per block: to stop after the first would lose rows."""
    parts: list[bytes] = []
    while body:
        frame = lz4.frame.LZ4FrameDecompressor()
        parts.append(frame.decompress(body))
        if not frame.eof:
            raise EOFError("the last lz4 frame is truncated")
        body = frame.unused_data or b""
    return b"".join(parts)


def decompress_body(body: bytes, encoding: str | None) -> bytes:
    """Return the decompressed body. `encoding` None: the body is not compressed.

    Raises `EngineError` with code 271 for damaged or truncated bytes, 89 for an unknown encoding.
    """
    kind = (encoding or "identity").strip().lower()
    try:
        match kind:
            case "identity":
                return body
            case "lz4":
                return _decompress_lz4(body)
            case "gzip":
                return gzip.decompress(body)
            case "deflate":
                return zlib.decompress(body)
            case "zstd":
                return zstd.decompress(body)
    except (RuntimeError, EOFError, OSError, zlib.error, zstd.ZstdError) as error:
        text = f"Code: 271. DB::Exception: Cannot decompress the {kind} body: {error}. (CANNOT_DECOMPRESS)"
        raise EngineError(271, text) from error
    raise EngineError(89, f"Code: 89. DB::Exception: Unknown Content-Encoding {kind}. (UNKNOWN_COMPRESSION_METHOD)")
