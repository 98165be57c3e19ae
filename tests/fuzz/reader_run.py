"""One run of the readers' fuzzer: the readers and writers that the build made, against fastavro.

A reader must return what fastavro does, of the same types, or give up. A writer must write what
fastavro does, or give up. What a reader of identities returns must be what the whole event says, if
that can be read.
"""

from collections.abc import Callable, Iterable, Iterator
from random import Random
from typing import Any, Final, NamedTuple

from sessionary.schemas.codec import SINGLE_OBJECT, Decoder, Event, write_generally
from sessionary.schemas.codec.catalogue import writer_schemas
from sessionary.schemas.codec.compiled_helpers import READER_GAVE_UP, WRITER_GAVE_UP, Reader, Writer, find_function
from sessionary.schemas.codec.formats import Format, event_format, format_by_name, record_format
from sessionary.schemas.errors import DecodeError, EncodeError
from sessionary.schemas.events import EVENT_TYPES
from sessionary.schemas.headers import EventIdentity
from sessionary.schemas.rules import NEWEST_RULES
from tests.fuzz.avro_bytes import Append, AvroMaker
from tests.fuzz.damage import damage_bytes, damage_value

INPUTS_PER_VALUE: Final = 10  # the value itself, and damaged copies of it
_AGAIN_SHARE: Final = 0.3  # is damaged once more
# Of the inputs that a reader gave up, so many are read by fastavro, to see what that makes of them.
_COMPARED_SHARE: Final = 0.1
_HEADER_BYTES: Final = 10
_FAULTS_MAX: Final = 5
_GENERAL: Final = Decoder(compiled=False)


class ReadCounts(NamedTuple):
    """What became of the inputs of a run, or of several."""

    inputs: int = 0
    agreed: int = 0  # the reader returned a value, which is fastavro's
    given_up: int = 0
    compared: int = 0  # of those that were given up
    readable: int = 0  # of those that were compared, fastavro reads these
    identities: int = 0  # compared with the whole event
    written: int = 0  # values, half of them with a wrong part: the writer wrote what fastavro writes
    not_written: int = 0  # it gave up
    faults: tuple[str, ...] = ()

    def add(self, other: "ReadCounts") -> "ReadCounts":
        """Return the sum of both."""
        pairs: Iterable[tuple[Any, Any]] = zip(self, other, strict=True)
        return ReadCounts(*(mine + theirs for mine, theirs in pairs))


class _Known(NamedTuple):
    """A schema with what the build made for it; the writer is that of today's or an older form."""

    name: str
    header: bytes
    append: Append
    read: Reader
    read_identity: Reader | None
    is_event: bool


class ReaderRun:
    """Reads and writes random values of every known schema; the seed decides which."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._maker = AvroMaker(self._random)
        self._known = list(self._find_known())
        self._counts = dict.fromkeys(ReadCounts._fields[:-1], 0)
        self._faults: list[str] = []

    def read_inputs(self, inputs: int) -> ReadCounts:
        """Read so many inputs, and write some values beside; return what came of them."""
        other = b""
        while self._counts["inputs"] < inputs and len(self._faults) < _FAULTS_MAX:
            known = self._random.choice(self._known)
            value = known.header + self._maker.make_bytes(known.append)
            found = self._read_input(known, value)
            if found is not None:
                writable = _under_its_type(found)
                for each in (writable, damage_value(self._random, writable)):
                    self._write_value(each)
            for _ in range(min(INPUTS_PER_VALUE - 1, inputs - self._counts["inputs"])):
                damaged = damage_bytes(self._random, value, _HEADER_BYTES, other)
                if self._random.random() < _AGAIN_SHARE:
                    damaged = damage_bytes(self._random, damaged, _HEADER_BYTES, other)
                self._read_input(known, damaged)
            other = value
        return ReadCounts(**self._counts, faults=tuple(self._faults))

    def _find_known(self) -> Iterator[_Known]:
        for fingerprint, schema in sorted(writer_schemas().items()):
            format_ = format_by_name(schema.full_name)
            if format_ is None:
                continue
            read = find_function("read", schema.full_name, fingerprint)
            if read is None:
                raise LookupError(f"the build made no reader of {schema.full_name}: make codec")
            identity = find_function("read_identity", schema.full_name, fingerprint) if format_.is_event else None
            append = self._maker.appender_of(
                schema.parsed, EVENT_TYPES.get(format_.cls, "") if format_.is_event else ""
            )
            header = SINGLE_OBJECT + fingerprint
            yield _Known(schema.full_name, header, append, read, identity, format_.is_event)

    def _read_input(self, known: _Known, value: bytes) -> Any:
        """Read an input; return what the reader returned, None if it gave up."""
        self._counts["inputs"] += 1
        found = _attempt(known.read, READER_GAVE_UP, value, _HEADER_BYTES)
        identity = None
        if known.read_identity is not None:
            identity = _attempt(known.read_identity, READER_GAVE_UP, value, _HEADER_BYTES)
        if found is not None:
            self._counts["agreed"] += 1
            general = _read_generally(known, value)
            if repr(found) != repr(general):
                self._note_fault(f"{known.name}: read {found!r}, fastavro {general!r}, of {value.hex()}")
                return None
            self._compare_identity(known, identity, found, value)
            return found
        self._counts["given_up"] += 1
        if self._random.random() < _COMPARED_SHARE:
            self._counts["compared"] += 1
            general = _read_generally(known, value)
            if not isinstance(general, DecodeError):
                self._counts["readable"] += 1
                self._compare_identity(known, identity, general, value)
        return None

    def _compare_identity(self, known: _Known, identity: Any, event: Any, value: bytes) -> None:
        if identity is None:
            return
        self._counts["identities"] += 1
        whole = EventIdentity(*(getattr(event.envelope, field) for field in EventIdentity._fields))
        if repr(identity) != repr(whole):
            self._note_fault(f"{known.name}: identity {identity!r}, of the event {whole!r}, of {value.hex()}")

    def _write_value(self, value: Any) -> None:
        """Let the compiled writer of a value's form write it, and compare with fastavro."""
        try:
            form = event_format(value) if isinstance(value, Event) else self._form_of_record(value)
        except (EncodeError, AttributeError, TypeError, KeyError):
            return  # it is of no class that is written, or not under its name: there is no writer to ask
        write: Writer | None = find_function("write", f"{form.schema['name']}", form.header[2:])
        if write is None:
            raise LookupError(f"the build made no writer of {form.schema['name']}: make codec")
        found = _attempt(write, WRITER_GAVE_UP, form.header, value)
        if found is None:
            self._counts["not_written"] += 1
            return
        self._counts["written"] += 1
        general = _attempt(write_generally, (EncodeError,), value, form.header, form)
        if found != general:
            self._note_fault(f"{form.cls.__name__}: wrote {found!r}, fastavro {general!r}, of {value!r}")

    def _form_of_record(self, value: Any) -> Format:
        return record_format(type(value), NEWEST_RULES.version)

    def _note_fault(self, fault: str) -> None:
        if len(self._faults) < _FAULTS_MAX:
            self._faults.append(fault)


def _under_its_type(value: Any) -> Any:
    """Return an event with the type of its payload's class, without which it is not written."""
    if not isinstance(value, Event):
        return value
    return value._replace(envelope=value.envelope._replace(event_type=EVENT_TYPES[type(value.payload)]))


def _read_generally(known: _Known, value: bytes) -> object:
    """Return what fastavro reads, or the error that says why it cannot."""
    try:
        return _GENERAL.decode_event(value) if known.is_event else _GENERAL.decode_record(value)
    except DecodeError as error:
        return error


def _attempt(call: Callable[..., Any], gave_up: tuple[type[Exception], ...], *arguments: Any) -> Any:
    """Return what a call returns; None if it gave up."""
    try:
        return call(*arguments)
    except gave_up:
        return None
