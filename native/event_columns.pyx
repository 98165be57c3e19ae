
# Rows of the table history from events' bytes to the planes of its columns, as `core/rows/history` and
# `clickhouse/native` make them: the same bytes. A record of any other form than the usual one is left
# to them. avro_reading.pyx, payload_steps.pyx and event_plans.pyx come before this text.

from cpython.bytes cimport PyBytes_CheckExact
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.unicode cimport PyUnicode_CheckExact
from libc.stdint cimport uint32_t
from libc.string cimport memset

from sessionary.schemas.headers import CONTENT_TYPE, TYPE_PREFIX, iso_second, keep_unreadable
from sessionary.schemas.retention import PERSONAL_US
from sessionary.schemas.limits import REPORTED_MAX_US
from sessionary.sinks.core.rows.shared import NEVER_S, TIME_MAX_US
from sessionary.sinks.core.rows.history import HISTORY_COLUMNS
from sessionary.sinks.core.rows.shared import RawRecord

cdef extern from *:
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL
    object PyObject_CallMethodNoArgs(object source, object name)

cdef int64_t c_reported_max = REPORTED_MAX_US, c_time_max_ms = TIME_MAX_US // 1_000
cdef int64_t c_personal_us = PERSONAL_US, c_never_s = NEVER_S
cdef bytes c_content_type = CONTENT_TYPE, c_version = b"1.0", c_type_prefix = TYPE_PREFIX.encode()
_HEADER_NAMES = ("content-type", "ce_specversion", "ce_id", "ce_source", "ce_type", "ce_subject", "ce_time")
cdef int OWN_HEADERS = len(_HEADER_NAMES)
cdef int FIGURES_AT = REST_AT + 15
cdef int MODEL = FIGURE_COLUMNS.index("model")
cdef int IS_TIMEOUT_RETRY = FIGURE_COLUMNS.index("is_timeout_retry")
cdef int EXECUTION_TIME = FIGURE_COLUMNS.index("execution_time_ms")  # and those behind it

cdef inline int add_length(Plane *o, uint64_t length) except -1:
    while length > 127:
        add_byte(o, <int>(length & 127 | 128))
        length >>= 7
    return add_byte(o, <int>length)

cdef inline int add_sized(Plane *o, const void *data, Py_ssize_t length) except -1:
    add_length(o, length)
    return add_raw(o, data, length)

cdef inline int add_number(Plane *o, int64_t number) except -1:
    return add_raw(o, &number, 8)

cdef inline int add_short_number(Plane *o, int64_t number) except -1:
    cdef uint32_t short = <uint32_t>number
    return add_raw(o, &short, 4)

cdef inline bint is_same(object value, const void *data, Py_ssize_t length) noexcept:
    return PyBytes_CheckExact(value) and PyBytes_GET_SIZE(value) == length and not memcmp(
        PyBytes_AS_STRING(value), data, length)

cdef inline bint is_same_text(object text, object own) except -1:
    cdef Py_ssize_t size, own_size
    cdef const char *data
    if not PyUnicode_CheckExact(text):
        return False
    data = PyUnicode_AsUTF8AndSize(text, &size)
    return is_same(own, data, size)

cdef class EventColumns:
    # The planes of the columns, for the rows of one portion.
    cdef Plane planes[PLANES_MAX]
    cdef Plane json
    cdef Plane scratch
    cdef int widths[64]
    cdef int plane_count, columns
    cdef tuple own_names
    cdef int64_t second
    cdef bytes second_text

    def __cinit__(self):
        memset(self.planes, 0, sizeof(self.planes))
        memset(&self.json, 0, sizeof(Plane))
        memset(&self.scratch, 0, sizeof(Plane))

    def __init__(self):
        self.own_names = tuple([name.encode() for name in _HEADER_NAMES])
        self.second, self.second_text = -1, b""
        for kind in _TYPES:
            width = 3 if kind.startswith("Array(Tuple") else 2 if kind.startswith(("Array", "Nullable")) else 1
            self.widths[self.columns] = width
            self.plane_count += width
            self.columns += 1
        assert self.plane_count <= PLANES_MAX

    def __dealloc__(self):
        for plane in range(PLANES_MAX):
            free(self.planes[plane].data)
        free(self.json.data)
        free(self.scratch.data)

    def encode(self, list records, Py_ssize_t first, Py_ssize_t last):
        # Encodes records until the first one that is left to the Python. Returns how many these are,
        # and a piece of each plane of each column.
        cdef int column, width, plane = 0
        cdef Py_ssize_t n = first
        for plane in range(self.plane_count):
            self.planes[plane].at = 0
        try:
            for raw in records[first:last]:
                if type(raw) is not RawRecord:
                    raise TypeError
                self.add_record(<tuple>raw)
                n += 1
        except (ValueError, IndexError, TypeError, OverflowError):
            pass
        if n == first:
            return 0, []
        pieces, plane = [], 0
        for column in range(self.columns):
            width = self.widths[column]
            pieces.append([self.taken(plane + each) for each in range(width)])
            plane += width
        return n - first, pieces

    cdef object taken(self, int plane):
        return PyBytes_FromStringAndSize(self.planes[plane].data, self.planes[plane].at)

    cdef int add_record(self, tuple raw) except -1:
        # All is read before anything is added: a record that is given up leaves nothing.
        cdef Field fields[FIELDS_MAX]
        cdef In source
        cdef EventPlan plan
        cdef ClassRule rule
        cdef Py_ssize_t own, key_size = 0, topic_size
        cdef int64_t partition = raw[1], timestamp_ms = raw[3]
        cdef uint64_t offset = raw[2]
        cdef const char *topic = PyUnicode_AsUTF8AndSize(raw[0], &topic_size)
        key, value = raw[4], raw[5]
        if type(value) is not bytes or (key is not None and type(key) is not bytes):
            raise ValueError
        if partition < 0 or partition > <int64_t>0xFFFFFFFF or timestamp_ms < 0 or timestamp_ms >= c_time_max_ms:
            raise ValueError
        plan = find_plan(value)
        if plan is None:
            raise ValueError
        memset(fields, 0, sizeof(fields))
        open_bytes(&source, value, 10)
        plan.read_envelope(&source, fields)
        if fields[EVENT_TYPE].size != PyBytes_GET_SIZE(plan.event_type) or memcmp(
                fields[EVENT_TYPE].data, PyBytes_AS_STRING(plan.event_type), fields[EVENT_TYPE].size):
            raise ValueError
        if fields[OCCURRED_AT].number < 0 or fields[OCCURRED_AT].number > c_reported_max:
            raise ValueError
        self.json.at = 0
        plan.forget_figures()
        plan.payload.write(&source, &self.json)
        if source.at != source.end:
            raise ValueError
        model = plan.figures[MODEL]
        if model is not None and (<Step>model).is_there and (<Step>model).number > c_text_max:
            raise ValueError  # it may have to be cut
        rule = plan.rule_of(&fields[CLASSES_AT], timestamp_ms)
        headers = headers_of(raw[6])
        own = self.own_headers(headers, fields, plan)
        if headers is not None:
            check_headers(headers, own)
        if key is not None:
            key_size = PyBytes_GET_SIZE(key)
        self.add_place(partition, offset, timestamp_ms)
        self.add_envelope(fields, rule)
        self.add_rest(key, key_size, value, headers, own, rule, timestamp_ms * 1_000, topic, topic_size)
        self.add_figures(plan.figures)
        return add_byte(&self.planes[self.plane_count - 1], 0)  # no text of a time: it is one of the usual ones

    cdef int add_place(self, int64_t partition, uint64_t offset, int64_t timestamp_ms) except -1:
        add_short_number(&self.planes[0], partition)
        add_number(&self.planes[1], <int64_t>offset)
        add_number(&self.planes[2], timestamp_ms)
        return add_byte(&self.planes[3], 0)

    cdef int add_envelope(self, Field *fields, ClassRule rule) except -1:
        cdef Plane *o = &self.planes[4]
        cdef Field *field
        cdef int n, kind
        for n in range(FIELD_COUNT):
            kind, field = field_kinds[n], &fields[n]
            if kind == MAYBE_TEXT or kind == MAYBE_NUMBER:
                add_byte(o, 0 if field.is_there else 1)
                o += 1
            if kind == TEXT or kind == MAYBE_TEXT:
                add_sized(o, field.data, field.size)
            elif kind == SHORT_NUMBER:
                add_short_number(o, field.number)
            elif kind == CLASSES:
                add_number(o, rule.count)
                o += 1
                add_bytes(o, rule.elements)
            else:
                add_number(o, field.number)
            o += 1
        return 0

    cdef int add_rest(self, object key, Py_ssize_t key_size, bytes value, object headers, Py_ssize_t own,
                      ClassRule rule, int64_t appended, const char *topic, Py_ssize_t topic_size) except -1:
        cdef Plane *o = &self.planes[REST_AT]
        cdef int64_t personal = appended + c_personal_us
        add_sized(o, self.json.data, self.json.at)
        add_byte(o + 1, 1 if key is None else 0)
        if key is None:
            add_byte(o + 2, 0)
        else:
            add_sized(o + 2, PyBytes_AS_STRING(key), key_size)
        add_byte(o + 3, 0)
        add_sized(o + 4, PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value))
        add_headers(o + 5, headers, own)
        add_bytes(o + 8, rule.name)
        add_number(o + 9, appended + rule.period_us)
        add_byte(o + 10, 0 if rule.is_personal else 1)
        add_number(o + 11, personal if rule.is_personal else 0)
        add_short_number(o + 12, personal // 1_000_000 if rule.is_personal else c_never_s)
        add_sized(o + 13, topic, topic_size)
        return add_short_number(o + 14, key_size + PyBytes_GET_SIZE(value))

    cdef int add_figures(self, list figures) except -1:
        cdef Plane *o = &self.planes[FIGURES_AT]
        cdef Step step
        cdef int64_t number
        cdef int n
        cdef bint is_there
        for n in range(len(figures)):
            step = figures[n]
            is_there = step is not None and step.is_there
            if n == MODEL or n >= EXECUTION_TIME:  # the columns with nulls
                add_byte(o, 0 if is_there else 1)
                o += 1
            number = step.number if is_there else 0
            if n == MODEL and is_there:
                add_sized(o, step.text, number)
            elif n == MODEL or n == IS_TIMEOUT_RETRY:
                add_byte(o, <int>number)
            else:
                add_number(o, number)
            o += 1
        return 0

    cdef Py_ssize_t own_headers(self, object headers, Field *fields, EventPlan plan) except -1:
        # Returns how many of the first headers repeat the envelope: all of its own, or none.
        cdef Plane *o = &self.scratch
        cdef int n
        if type(headers) is not list or PyList_GET_SIZE(headers) < OWN_HEADERS:
            return 0
        for n in range(OWN_HEADERS):
            pair = <object>PyList_GET_ITEM(headers, n)
            if type(pair) is not tuple or PyTuple_GET_SIZE(pair) != 2:
                raise ValueError
            if not is_same_text(<object>PyTuple_GET_ITEM(pair, 0), <object>PyTuple_GET_ITEM(self.own_names, n)):
                return 0
            value = <object>PyTuple_GET_ITEM(pair, 1)
            o.at = 0
            if n == 0:
                add_bytes(o, c_content_type)
            elif n == 1:
                add_bytes(o, c_version)
            elif n == 2:
                add_raw(o, fields[EVENT_ID].data, fields[EVENT_ID].size)
            elif n == 3:
                add_byte(o, 47)
                add_raw(o, fields[TENANT_ID].data, fields[TENANT_ID].size)
                add_byte(o, 47)
                add_raw(o, fields[SERVICE_ID].data, fields[SERVICE_ID].size)
            elif n == 4:
                add_bytes(o, c_type_prefix)
                add_bytes(o, plan.event_type)
            elif n == 5:
                add_raw(o, fields[SESSION_ID].data, fields[SESSION_ID].size)
            else:
                self.add_time(o, fields[OCCURRED_AT].number)
            if not is_same(value, o.data, o.at):
                return 0
        return OWN_HEADERS

    cdef int add_time(self, Plane *o, int64_t at_us) except -1:
        # As `time_header`; `at_us` is not negative.
        cdef int64_t second = at_us // 1_000_000, rest = at_us % 1_000_000, unit = 100_000
        if second != self.second:
            self.second_text = iso_second(second).encode()
            self.second = second
        add_bytes(o, self.second_text)
        if rest:
            add_byte(o, 46)
            while unit:
                add_byte(o, <int>(48 + rest // unit % 10))
                unit //= 10
        return add_literal(o, b"+00:00")

cdef object headers_of(source):
    # As `read_headers`. Other than a call of Python's own kind, this one notices an exception beside
    # a list.
    try:
        return PyObject_CallMethodNoArgs(source, "headers")
    except (SystemError, UnicodeDecodeError):
        return keep_unreadable(source)

cdef int check_headers(object headers, Py_ssize_t first) except -1:
    cdef Py_ssize_t n
    if type(headers) is not list:
        raise ValueError
    for n in range(first, PyList_GET_SIZE(headers)):
        pair = <object>PyList_GET_ITEM(headers, n)
        if type(pair) is not tuple or PyTuple_GET_SIZE(pair) != 2:
            raise ValueError
        name, value = pair
        if type(name) is not str or (value is not None and type(value) is not bytes):
            raise ValueError
        (<str>name).encode()
    return 0

cdef int add_headers(Plane *o, object headers, Py_ssize_t first) except -1:
    cdef Py_ssize_t n, size
    cdef const char *text
    if headers is None:
        return add_number(o, 0)
    add_number(o, PyList_GET_SIZE(headers) - first)
    for n in range(first, PyList_GET_SIZE(headers)):
        name, value = <object>PyList_GET_ITEM(headers, n)
        text = PyUnicode_AsUTF8AndSize(name, &size)
        add_sized(o + 1, text, size)
        if value is None:
            add_byte(o + 2, 0)
        else:
            add_sized(o + 2, PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value))
    return 0

_FITS = (
    HISTORY_COLUMNS[_ENVELOPE_AT:_ENVELOPE_AT + len(Envelope._fields)] == Envelope._fields
    and len(HISTORY_COLUMNS) == len(_TYPES)
    and RawRecord._fields == ("topic", "partition", "offset", "timestamp_ms", "key", "value", "header_source")
)

def find_encoder(columns):
    """Return what encodes rows of history; None for columns of other names or types."""
    return EventColumns() if _FITS and list(columns) == list(zip(HISTORY_COLUMNS, _TYPES)) else None
