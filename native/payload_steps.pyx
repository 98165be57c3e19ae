
# Payloads from Avro's bytes to JSON, as `sinks/core/payload_json` writes them: the same text, or a
# `ValueError` or `IndexError`. A schema becomes a tree of steps, one for each of its parts, when its
# first bytes come; no value becomes an object. avro_reading.pyx comes before this text.

from sessionary.schemas import types as shared_types
from sessionary.sinks.core.payload_json import CUT_MARK, TEXT_MAX, UNCUT_SUFFIX, json_text

from libc.string cimport strlen

cdef extern from *:
    char *PyOS_double_to_string(double value, char format, int precision, int flags, int *kind) except NULL
    void PyMem_Free(void *place)
    double PyFloat_Unpack8(const char *place, int little_endian) except? -1.0
    int Py_DTSF_ADD_DOT_0

cdef Py_ssize_t c_text_max = TEXT_MAX
cdef bytes c_cut_mark = CUT_MARK.encode()

# Bytes that grow.
cdef struct Plane:
    char *data
    Py_ssize_t at
    Py_ssize_t end

cdef int grow_plane(Plane *o, Py_ssize_t more) except -1:
    cdef Py_ssize_t end = 2 * (o.at + more) + 64
    cdef char *data = <char *>realloc(o.data, end)
    if data == NULL:
        raise MemoryError
    o.data, o.end = data, end
    return 0

cdef inline int add_raw(Plane *o, const void *data, Py_ssize_t length) except -1:
    if o.end - o.at < length:
        grow_plane(o, length)
    memcpy(o.data + o.at, data, length)
    o.at += length
    return 0

cdef inline int add_bytes(Plane *o, bytes value) except -1:
    return add_raw(o, PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value))

cdef inline int add_literal(Plane *o, const char *text) except -1:
    return add_raw(o, text, strlen(text))

cdef inline int add_byte(Plane *o, int byte) except -1:
    if o.end == o.at:
        grow_plane(o, 1)
    o.data[o.at] = <char>byte
    o.at += 1
    return 0

cdef int add_decimal(Plane *o, int64_t number) except -1:
    cdef char digits[20]
    cdef int place = 20
    cdef uint64_t rest = <uint64_t>number
    if number < 0:
        rest = 0 - rest
        add_byte(o, 45)
    while True:
        place -= 1
        digits[place] = <char>(48 + rest % 10)
        rest = rest // 10
        if not rest:
            return add_raw(o, &digits[place], 20 - place)

cdef inline bint is_ascii(const unsigned char *data, Py_ssize_t length) noexcept:
    cdef Py_ssize_t at = 0
    cdef uint64_t eight, seen = 0
    while length - at >= 8:
        memcpy(&eight, data + at, 8)
        seen |= eight
        at += 8
    while at < length:
        seen |= data[at]
        at += 1
    return not seen & <uint64_t>0x8080808080808080

cdef inline int check_text(const unsigned char *data, Py_ssize_t length) except -1:
    if not is_ascii(data, length):
        PyUnicode_DecodeUTF8(<const char *>data, length, NULL)
    return 0

cdef inline Py_ssize_t length_of_start(const unsigned char *data, Py_ssize_t length, Py_ssize_t characters) noexcept:
    # In bytes, of so many characters of UTF-8, at most.
    cdef Py_ssize_t at = 0
    while at < length:
        if data[at] & 0xC0 != 0x80:
            if not characters:
                return at
            characters -= 1
        at += 1
    return length

cdef inline bint is_plain(const unsigned char *eight) noexcept:
    # Whether none of eight bytes is to be escaped: all of them are looked at together.
    cdef uint64_t value, quote, backslash
    memcpy(&value, eight, 8)
    quote, backslash = value ^ <uint64_t>0x2222222222222222, value ^ <uint64_t>0x5C5C5C5C5C5C5C5C
    return not (((value - <uint64_t>0x2020202020202020) & ~value)
                | ((quote - <uint64_t>0x0101010101010101) & ~quote)
                | ((backslash - <uint64_t>0x0101010101010101) & ~backslash)) & <uint64_t>0x8080808080808080

cdef inline char *add_escape(char *to, unsigned char byte) noexcept:
    to[0], to[1] = 92, byte
    if byte == 8:
        to[1] = 98
    elif byte == 9:
        to[1] = 116
    elif byte == 10:
        to[1] = 110
    elif byte == 12:
        to[1] = 102
    elif byte == 13:
        to[1] = 114
    elif byte < 32:
        to[1], to[2], to[3], to[4] = 117, 48, 48, 48 + (byte >> 4)
        to[5] = (byte & 15) + (48 if byte & 15 < 10 else 87)
        return to + 6
    return to + 2

cdef int add_escaped(Plane *o, const unsigned char *data, Py_ssize_t length) except -1:
    cdef Py_ssize_t at = 0, end = 0
    cdef char *to = NULL
    while at < length:
        if at == end:
            # The next bytes, as much as all of them may take if each is escaped.
            end = at + 256 if length - at > 256 else length
            if to != NULL:
                o.at = to - o.data
            if o.end - o.at < 6 * (end - at):
                grow_plane(o, 6 * (end - at))
            to = o.data + o.at
        if end - at >= 8 and is_plain(data + at):
            memcpy(to, data + at, 8)
            to += 8
            at += 8
            continue
        if data[at] >= 32 and data[at] != 34 and data[at] != 92:
            to[0] = <char>data[at]
            to += 1
        else:
            to = add_escape(to, data[at])
        at += 1
    if to != NULL:
        o.at = to - o.data
    return 0

cdef int write_text(In *i, Plane *o, bint is_cut) except -1:
    cdef Py_ssize_t length = read_length(i), kept = length
    cdef const unsigned char *data = i.data + i.at
    i.at += length
    check_text(data, length)
    if is_cut and length > c_text_max:
        kept = length_of_start(data, length, c_text_max)
    add_byte(o, 34)
    add_escaped(o, data, kept)
    if kept < length:
        add_bytes(o, c_cut_mark)
    return add_byte(o, 34)

cdef class Step:
    # What was written last, of a value that figures need: a number, or a text and its bytes.
    cdef bint is_there
    cdef int64_t number
    cdef const unsigned char *text

    cdef int write(self, In *i, Plane *o) except -1:
        raise NotImplementedError

    cdef Step at(self, list path):
        # Returns the step of a part; itself if the path is empty. Raises `KeyError`.
        if path:
            raise KeyError
        return self

cdef class TextStep(Step):
    cdef bint is_cut

    def __init__(self, is_cut):
        self.is_cut = is_cut

    cdef int write(self, In *i, Plane *o) except -1:
        cdef Py_ssize_t start = i.at
        write_text(i, o, self.is_cut)
        while i.data[start] > 127:
            start += 1  # the text's length
        self.is_there, self.text, self.number = True, i.data + start + 1, i.at - start - 1
        return 0

cdef class BytesStep(Step):
    cdef int write(self, In *i, Plane *o) except -1:
        cdef Py_ssize_t size = read_length(i)
        value = PyBytes_FromStringAndSize(<const char *>i.data + i.at, min(size, c_text_max))
        i.at += size
        return add_bytes(o, json_text(value).encode())

cdef class NumberStep(Step):
    cdef int write(self, In *i, Plane *o) except -1:
        self.is_there, self.number = True, read_number(i)
        return add_decimal(o, self.number)

cdef class FlagStep(Step):
    cdef int write(self, In *i, Plane *o) except -1:
        cdef int byte = read_byte(i)
        if byte > 1:
            raise ValueError
        self.is_there, self.number = True, byte
        return add_literal(o, b"true") if byte else add_literal(o, b"false")

cdef class FractionStep(Step):
    cdef int write(self, In *i, Plane *o) except -1:
        cdef double value
        cdef char *text
        if i.end - i.at < 8:
            raise ValueError
        value = PyFloat_Unpack8(<const char *>i.data + i.at, 1)
        i.at += 8
        if value - value != 0:
            raise ValueError
        text = PyOS_double_to_string(value, 114, 0, Py_DTSF_ADD_DOT_0, NULL)  # as repr
        try:
            return add_literal(o, text)
        finally:
            PyMem_Free(text)

cdef class SymbolStep(Step):
    cdef tuple texts

    def __init__(self, symbols):
        self.texts = tuple(f'"{symbol}"'.encode() for symbol in symbols)

    cdef int write(self, In *i, Plane *o) except -1:
        cdef int byte = read_byte(i)
        if byte > 127 or byte & 1 or byte >> 1 >= PyTuple_GET_SIZE(self.texts):
            raise ValueError
        self.is_there, self.number = True, byte >> 1
        return add_bytes(o, <bytes>PyTuple_GET_ITEM(self.texts, byte >> 1))

cdef class OptionalStep(Step):
    cdef Step inner

    def __init__(self, inner):
        self.inner = inner

    cdef int write(self, In *i, Plane *o) except -1:
        return self.inner.write(i, o) if is_there(i) else add_literal(o, b"null")

    cdef Step at(self, list path):
        return self.inner.at(path)

cdef class ListStep(Step):
    cdef Step inner

    def __init__(self, inner):
        self.inner = inner

    cdef int write(self, In *i, Plane *o) except -1:
        cdef int n, count = read_count(i)
        cdef bint is_first = True
        add_byte(o, 91)
        while count:
            for n in range(count):
                if not is_first:
                    add_byte(o, 44)
                is_first = False
                self.inner.write(i, o)
            count = read_count(i)
        return add_byte(o, 93)

cdef class MapStep(Step):
    cdef Step inner

    def __init__(self, inner):
        self.inner = inner

    cdef int write(self, In *i, Plane *o) except -1:
        cdef int n, count = read_count(i)
        cdef Py_ssize_t start
        cdef set keys = set()
        add_byte(o, 123)
        while count:
            for n in range(count):
                if keys:
                    add_byte(o, 44)
                start = o.at
                write_text(i, o, False)
                key = PyBytes_FromStringAndSize(o.data + start, o.at - start)
                if key in keys:
                    raise ValueError  # a dictionary would keep one of the two
                keys.add(key)
                add_byte(o, 58)
                self.inner.write(i, o)
            count = read_count(i)
        return add_byte(o, 125)

cdef class ObjectStep(Step):
    cdef tuple names, steps  # what comes before each value, and the values
    cdef bytes end
    cdef dict by_field

    def __init__(self, names, steps, end, by_field):
        self.names, self.steps, self.end, self.by_field = names, steps, end, by_field

    cdef Step at(self, list path):
        return (<Step>self.by_field[path[0]]).at(path[1:]) if path else self

    cdef int write(self, In *i, Plane *o) except -1:
        cdef Py_ssize_t n
        for n in range(PyTuple_GET_SIZE(self.steps)):
            add_bytes(o, <bytes>PyTuple_GET_ITEM(self.names, n))
            (<Step>PyTuple_GET_ITEM(self.steps, n)).write(i, o)
        return add_bytes(o, self.end)

cdef class SnapshotStep(ObjectStep):
    # Its figure is the size of the state, if the snapshot has the whole one.
    cdef Step state, encoding, compression
    cdef int64_t full, none

    def __init__(self, names, steps, end, by_field, symbols):
        ObjectStep.__init__(self, names, steps, end, by_field)
        self.state, self.encoding, self.compression = (by_field[name] for name in _SNAPSHOT_PARTS)
        self.full, self.none = symbols["encoding"].index("full"), symbols["compression"].index("none")

    cdef int write(self, In *i, Plane *o) except -1:
        ObjectStep.write(self, i, o)
        self.is_there = self.encoding.number == self.full and self.compression.number == self.none
        self.number = self.state.number
        return 0

_SNAPSHOT_PARTS = ("state_json", "encoding", "compression")

def _make_step(schema, known, uncut=False):
    # Raises `NotImplementedError` for what no payload has. `known`: named types so far.
    if isinstance(schema, list):
        if len(schema) != 2 or schema[0] != "null":
            raise NotImplementedError
        return OptionalStep(_make_step(schema[1], known, uncut))
    if isinstance(schema, str):
        if schema in known:
            return _make_step(known[schema], known, uncut)
        if schema == "string":
            return TextStep(not uncut)
        if schema not in _PLAIN_STEPS:
            raise NotImplementedError
        return _PLAIN_STEPS[schema]()
    kind = schema["type"]
    if kind in ("record", "enum"):
        known[schema["name"]] = schema
    if kind == "record":
        return make_object_step(getattr(shared_types, schema["name"].rpartition(".")[2]), schema["fields"], known)
    if kind == "enum":
        return SymbolStep(schema["symbols"])
    if kind == "array":
        return ListStep(_make_step(schema["items"], known))
    if kind == "map":
        return MapStep(_make_step(schema["values"], known))
    return _make_step(kind, known, uncut)

def make_object_step(cls, fields, known):
    # The step of an instance of `cls`; fields that its schema has not get their defaults. Raises
    # `NotImplementedError` if the schema has another order of fields.
    left = list(fields)
    names, steps, by_field, text = [], [], {}, "{"
    for place, name in enumerate(cls._fields):
        text += f'{"," if place else ""}"{name}":'
        if left and left[0]["name"] == name:
            names.append(text.encode())
            by_field[name] = _make_step(left.pop(0)["type"], known, name.endswith(UNCUT_SUFFIX))
            steps.append(by_field[name])
            text = ""
        elif name in cls._field_defaults:
            text += json_text(cls._field_defaults[name])
        else:
            raise NotImplementedError
    if left:
        raise NotImplementedError
    parts = tuple(names), tuple(steps), f"{text}}}".encode(), by_field
    if cls is not shared_types.Snapshot:
        return ObjectStep(*parts)
    if not by_field.keys() >= set(_SNAPSHOT_PARTS):
        raise NotImplementedError
    types = {field["name"]: field["type"] for field in fields}
    enums = {name: known.get(kind, kind) if isinstance(kind, str) else kind for name, kind in types.items()}
    return SnapshotStep(*parts, {name: enums[name]["symbols"] for name in _SNAPSHOT_PARTS[1:]})

_PLAIN_STEPS = {
    "bytes": BytesStep, "int": NumberStep, "long": NumberStep, "boolean": FlagStep, "double": FractionStep,
}
