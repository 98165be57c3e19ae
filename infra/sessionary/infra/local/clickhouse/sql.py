"""The kind of a statement, and whether the local engine may run it. Pure.

Reads and changes of rows are allowed. Definitions must be on an allow-list: a definition that fails
halfway (such as `ENGINE = Kafka`) can leave metadata with which the folder never opens again. This
protects a developer's folder against accidents; it is no security boundary.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import lz4.frame
from backports import zstd

from sessionary.infra.local.errors import EngineError, StatementRefused

_TOKEN = re.compile(
    rb"""
      (?P<skip>\s+|--[^\n]*|\#[!\ ][^\n]*|/\*.*?\*/)
    | (?P<string>'(?:[^'\\]|\\.|'')*')
    | (?P<name>"(?:[^"\\]|\\.|"")*"|`(?:[^`\\]|\\.|``)*`)
    | (?P<heredoc>\$(?P<tag>\w*)\$.*?\$(?P=tag)\$)
    | (?P<word>\w+)
    | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_READS = frozenset(
    ("SELECT", "WITH", "FROM", "(", "SHOW", "DESCRIBE", "DESC", "EXISTS", "EXPLAIN", "CHECK", "USE", "SET")
)
_CHANGES = frozenset(("OPTIMIZE", "TRUNCATE", "DELETE", "UPDATE", "DROP", "UNDROP", "RENAME", "EXCHANGE", "KILL"))
_SYSTEM = frozenset(("REFRESH", "WAIT", "CANCEL", "START", "STOP", "FLUSH"))
_ENGINE = re.compile(r"(Replacing|Summing|Aggregating|Coalescing|Collapsing|VersionedCollapsing)?MergeTree|Memory|Null")
_DATABASE_ENGINES = frozenset({"Atomic"})
_CREATED = frozenset({"TABLE", "VIEW", "MATERIALIZED VIEW", "DATABASE"})


@dataclass(frozen=True, slots=True)
class _Token:
    text: str
    bare: str
    """A word in upper case, or a sign; empty for quoted names and literals."""
    depth: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Insert:
    """An INSERT with its data. `head` ends before SETTINGS, `settings` before the format's name."""

    head: str
    settings: str
    format: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement that may run.

    `read_only`: it changes nothing. `format`: the output format that its text names.
    """

    text: bytes
    read_only: bool
    format: str | None = None
    insert: Insert | None = None


def _scan_tokens(sql: bytes) -> Iterator[_Token]:
    """Yield the tokens, without white space and comments.

    Lazy, so that an insert's data is never scanned.
    """
    depth = 0
    for match in _TOKEN.finditer(sql):
        kind = match.lastgroup
        if match["skip"] is not None:
            continue
        text = match[0].decode("latin-1")
        bare = text.upper() if match["word"] is not None or match["other"] is not None else ""
        if bare == ")":
            depth -= 1
        yield _Token(text.strip('`"') if kind == "name" else text, bare, depth, match.start(), match.end())
        if bare == "(":
            depth += 1


def parse_statement(sql: bytes) -> Statement:
    """Parse one statement.

    Raises `StatementRefused` if it may not run here, `EngineError` with code 62 if there is none or
    more than one.
    """
    first = next(_scan_tokens(sql), None)
    if first is None:
        raise EngineError(62, "Code: 62. DB::Exception: Syntax error: Empty query. (SYNTAX_ERROR)")
    if first.bare == "INSERT":
        insert = _split_insert(sql)
        if insert is not None:
            return Statement(sql, read_only=False, insert=insert)
    tokens = _single_statement(sql)
    if first.bare in _READS:
        if _has_pair(tokens, "INTO", "OUTFILE"):
            raise StatementRefused("INTO OUTFILE is done by the client, not over HTTP")
        return Statement(sql, read_only=True, format=_output_format(tokens))
    _check_change(tokens)
    return Statement(sql, read_only=False)


def _single_statement(sql: bytes) -> list[_Token]:
    tokens = list(_scan_tokens(sql))
    end = next((place for place, token in enumerate(tokens) if token.bare == ";"), len(tokens))
    if any(token.bare != ";" for token in tokens[end:]):
        raise EngineError(62, "Code: 62. DB::Exception: Syntax error: Multi-statements are not allowed. (SYNTAX_ERROR)")
    return tokens[:end]


def _has_pair(tokens: list[_Token], first: str, second: str) -> bool:
    return any(a.bare == first and b.bare == second for a, b in pairwise(tokens))


def _output_format(tokens: list[_Token]) -> str | None:
    """Return the X of a `FORMAT X` at the end of the statement or before its SETTINGS."""
    for place in range(len(tokens) - 1, 0, -1):
        last = place == len(tokens) - 1 or tokens[place + 1].bare == "SETTINGS"
        if (
            last
            and tokens[place - 1].bare == "FORMAT"
            and tokens[place].depth == 0
            and tokens[place].bare.isidentifier()
        ):
            return tokens[place].text
    return None


def _split_insert(sql: bytes) -> Insert | None:
    """Return head, format and data of an INSERT; None for an INSERT ... SELECT."""
    previous: _Token | None = None
    settings: int | None = None
    for token in _scan_tokens(sql):
        if token.depth == 0 and previous is not None:
            if previous.bare in ("INTO", "TABLE") and token.bare == "FUNCTION":
                raise StatementRefused("INSERT INTO FUNCTION is not served by the local engine")
            if previous.bare == "FROM" and token.bare == "INFILE":
                raise StatementRefused("FROM INFILE is done by the client, not over HTTP")
            if token.bare in ("SELECT", "WITH", ";"):
                return None
            if token.bare == "SETTINGS" and previous.bare not in ("INTO", "TABLE", "."):
                settings = token.start
            if token.bare == "VALUES":
                return _insert_of(sql, settings, token.start, "Values", sql[token.end :].strip(b"; \t\r\n"))
            if previous.bare == "FORMAT" and token.bare.isidentifier():
                return _insert_of(sql, settings, previous.start, token.text, _insert_data(sql, token.end))
        previous = token
    return None


def _insert_of(sql: bytes, settings: int | None, end: int, format: str, data: bytes) -> Insert:
    """Return an insert whose clause of settings begins at `settings`, if it has one."""
    head = end if settings is None else settings
    return Insert(sql[:head].decode(), sql[head:end].decode(), format, data)


def _insert_data(sql: bytes, start: int) -> bytes:
    """Return the data, which begins after blanks and at most one line end.

    Further line ends may belong to the data.
    """
    while sql[start : start + 1] in (b" ", b"\t"):
        start += 1
    if sql.startswith(b"\r\n", start):
        return sql[start + 2 :]
    return sql[start + sql.startswith(b"\n", start) :]


def _check_change(tokens: list[_Token]) -> None:
    words = [token.bare for token in tokens]
    verb, second = words[0], words[1] if len(words) > 1 else ""
    if verb in _CHANGES or verb == "INSERT":
        return
    if verb == "SYSTEM" and second in _SYSTEM:
        return
    if verb == "ALTER" and second == "TABLE":
        if "FETCH" in words or "ATTACH" in words:
            raise StatementRefused("ALTER TABLE with FETCH or ATTACH is not served by the local engine")
        return
    if verb in ("CREATE", "REPLACE"):
        _check_create(tokens)
        return
    raise StatementRefused(f"{verb} {second} is not served by the local engine".replace("  ", " "))


def _created_kind(words: list[str]) -> str:
    """Return the kind that a CREATE creates: the words after CREATE, OR REPLACE and TEMPORARY."""
    rest = [word for word in words[:5] if word not in ("CREATE", "OR", "REPLACE", "TEMPORARY")]
    return " ".join(rest[:2]) if rest[:1] == ["MATERIALIZED"] else "".join(rest[:1])


def _check_create(tokens: list[_Token]) -> None:
    created = _created_kind([token.bare for token in tokens])
    if created not in _CREATED:
        raise StatementRefused(f"CREATE {created} is not served by the local engine")
    outer = [token for token in tokens if token.depth == 0]
    engine_seen = False
    for place, token in enumerate(outer):
        after = outer[place + 1 : place + 5]
        if token.bare in ("SELECT", "WITH") or (token.bare == "AS" and after and after[0].bare == "("):
            return
        if token.bare == "AS":
            _check_source(after)
        if token.bare == "DISK" and after and after[0].bare == "=":
            raise StatementRefused("tables with a disk of their own are not served by the local engine")
        if token.bare == "ENGINE" and not engine_seen:
            # Only the first ENGINE is the clause; a later one is a column, as in ORDER BY engine.
            engine_seen = True
            _check_engine(created, after)


def _check_source(after: list[_Token]) -> None:
    """Refuse `AS function(...)`, which defines a table over an outside source.

    `AS table`, which copies a definition, is allowed.
    """
    name = 2 if len(after) > 2 and after[1].bare == "." else 0
    if (
        after
        and after[0].bare not in ("SELECT", "WITH", "FROM")
        and len(after) > name + 1
        and after[name + 1].bare == "("
    ):
        raise StatementRefused("tables over table functions are not served by the local engine")


def _check_engine(created: str, after: list[_Token]) -> None:
    named = [token for token in after if token.bare != "="][:1]
    engine = named[0].text if named else ""
    allowed = engine in _DATABASE_ENGINES if created == "DATABASE" else _ENGINE.fullmatch(engine) is not None
    if not allowed:
        raise StatementRefused(
            f"ENGINE = {engine} is not served by the local engine: the MergeTree family, Memory and Null are"
        )


# Decompresses request bodies by their Content-Encoding. Pure.


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
