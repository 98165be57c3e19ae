
# How events of a schema are read for rows of the table history: the envelope into C's own types, the
# payload by steps. avro_reading.pyx and payload_steps.pyx come before this text.

from cpython.dict cimport PyDict_GetItem
from cpython.object cimport PyObject
from libc.stdint cimport int32_t

from sessionary.schemas.codec.catalogue import writer_schemas
from sessionary.schemas.codec.formats import SINGLE_OBJECT, format_by_name
from sessionary.schemas.events import EVENT_TYPES
from sessionary.schemas.retention import retention_of
from sessionary.schemas.types import Envelope
from sessionary.sinks.core.rows.history import FIGURE_COLUMNS, figure_places
from sessionary.sinks.core.rows.history import class_of_row

# The types that the columns must have; a table with others is left to the Python.
_TYPES = (
    "UInt32", "UInt64", "DateTime64(3, 'UTC')", "String",  # place, time and decode_error
    "String", "String", "Int32", "String", "String", "Nullable(String)", "String", "Nullable(String)", "String",
    "Nullable(String)", "Int64", "String", "Int64", "Nullable(String)", "Nullable(Int64)", "Nullable(String)",
    "Nullable(String)", "DateTime64(6, 'UTC')", "Array(String)", "Nullable(Int64)", "Nullable(String)",
    "Nullable(String)",  # the envelope
    "String", "Nullable(String)", "Nullable(String)", "Array(Tuple(`name` String, `value` String))",
    "String", "DateTime64(6, 'UTC')", "Nullable(DateTime64(6, 'UTC'))", "DateTime('UTC')", "String", "UInt32",
    "Nullable(String)", "Int64", "Int64", "Int64", "Int64", "Bool", "Int64", "Int64", "Int64", "Int64",
    "Nullable(Int64)", "Nullable(Int64)", "Nullable(UInt64)", "Nullable(Int64)",  # figures
    "String",  # text of a time
)
_ENVELOPE_AT = 4  # the envelope's first column

cdef enum:
    FIELDS_MAX = 32
    PLANES_MAX = 80
    # What a field of the envelope is.
    TEXT, MAYBE_TEXT, NUMBER, SHORT_NUMBER, MAYBE_NUMBER, CLASSES

_KINDS = {
    "String": TEXT, "Nullable(String)": MAYBE_TEXT, "Int32": SHORT_NUMBER, "Int64": NUMBER,
    "DateTime64(6, 'UTC')": NUMBER, "Nullable(Int64)": MAYBE_NUMBER, "Array(String)": CLASSES,
}
_FIELD_KINDS = [_KINDS.get(kind, TEXT) for kind in _TYPES[_ENVELOPE_AT:_ENVELOPE_AT + len(Envelope._fields)]]
cdef int EVENT_ID = Envelope._fields.index("event_id")
cdef int EVENT_TYPE = Envelope._fields.index("event_type")
cdef int TENANT_ID = Envelope._fields.index("tenant_id")
cdef int SESSION_ID = Envelope._fields.index("session_id")
cdef int SERVICE_ID = Envelope._fields.index("service_id")
cdef int OCCURRED_AT = Envelope._fields.index("occurred_at")
cdef int CLASSES_AT = Envelope._fields.index("data_classes")
cdef int FIELD_COUNT = len(Envelope._fields)
cdef int field_kinds[FIELDS_MAX]
for _place, _kind in enumerate(_FIELD_KINDS):
    field_kinds[_place] = _kind
# The plane of payload_json, behind those of the envelope.
cdef int REST_AT = _ENVELOPE_AT + sum([2 if kind in (MAYBE_TEXT, MAYBE_NUMBER, CLASSES) else 1 for kind in _FIELD_KINDS])
cdef int64_t c_day_ms = 86_400_000

cdef struct Field:
    bint is_there
    const unsigned char *data
    Py_ssize_t size
    int64_t number

cdef class ClassRule:
    # What follows from the classes of data that an event names, for records of one day.
    cdef bytes elements, name
    cdef int64_t count, period_us
    cdef bint is_personal

cdef class EventPlan:
    # How events of one schema are read.
    cdef int kinds[FIELDS_MAX]
    cdef int places[FIELDS_MAX]
    cdef int fields, symbols
    cdef bytes event_type
    cdef str event_type_text
    cdef tuple class_names
    cdef ObjectStep payload
    cdef list figures  # by column, the step that finds the figure; None without
    cdef dict rules
    cdef int64_t day

    def __init__(self, format_, schema):
        envelope, *rest = schema["fields"]
        if envelope["name"] != "envelope" or len(Envelope._fields) > FIELDS_MAX:
            raise NotImplementedError
        left = dict(zip(Envelope._fields, enumerate(_FIELD_KINDS)))
        for field in envelope["type"]["fields"]:
            place, kind = left.pop(field["name"])
            if not _fits(field["type"], kind):
                raise NotImplementedError
            if kind == CLASSES:
                self.class_names = tuple(field["type"]["items"]["symbols"])
                self.symbols = len(self.class_names)
            self.kinds[self.fields], self.places[self.fields] = kind, place
            self.fields += 1
        for name, (_place, kind) in left.items():
            if Envelope._field_defaults.get(name, "") not in (None, ()):
                raise NotImplementedError
        self.event_type_text = EVENT_TYPES[format_.cls]
        self.event_type = self.event_type_text.encode()
        self.payload = make_object_step(format_.cls, rest, _named_types(envelope["type"]))
        self.figures = [None] * len(FIGURE_COLUMNS)
        for column, path in figure_places(self.event_type_text).items():
            try:
                self.figures[FIGURE_COLUMNS.index(column)] = self.payload.at(path.split("."))
            except KeyError:  # an older schema has no such field; without a value there is no figure, or 0
                if format_.cls._field_defaults.get(path, -1) not in (None, 0):
                    raise NotImplementedError
        self.rules, self.day = {}, -1

    cdef int forget_figures(self) except -1:
        for step in self.figures:
            if step is not None:
                (<Step>step).is_there = False
        return 0

    cdef int read_envelope(self, In *i, Field *found) except -1:
        cdef int n, kind
        cdef Field *field
        for n in range(self.fields):
            kind, field = self.kinds[n], &found[self.places[n]]
            if kind == MAYBE_TEXT or kind == MAYBE_NUMBER:
                if not is_there(i):
                    continue
            field.is_there = True
            if kind == TEXT or kind == MAYBE_TEXT:
                field.size = read_length(i)
                field.data = i.data + i.at
                i.at += field.size
                check_text(field.data, field.size)
            elif kind == CLASSES:
                field.data = i.data + i.at
                self.skip_classes(i)
                field.size = i.data + i.at - field.data
            else:
                field.number = read_number(i)
                if kind == SHORT_NUMBER and field.number != <int32_t>field.number:
                    raise ValueError
        return 0

    cdef int skip_classes(self, In *i) except -1:
        cdef int n, byte, count = read_count(i)
        while count:
            for n in range(count):
                byte = read_byte(i)
                if byte > 127 or byte & 1 or byte >> 1 >= self.symbols:
                    raise ValueError
            count = read_count(i)
        return 0

    cdef ClassRule rule_of(self, Field *classes, int64_t timestamp_ms):
        cdef PyObject *known
        if timestamp_ms // c_day_ms != self.day:
            self.rules.clear()
            self.day = timestamp_ms // c_day_ms
        key = PyBytes_FromStringAndSize(<const char *>classes.data, classes.size)
        known = PyDict_GetItem(self.rules, key)
        if known != NULL:
            return <ClassRule>known
        rule = self.make_rule(key, timestamp_ms)
        self.rules[key] = rule
        return rule

    cdef ClassRule make_rule(self, bytes key, int64_t timestamp_ms):
        cdef In source
        cdef ClassRule rule = ClassRule()
        cdef int n, count
        names = []
        if key:
            open_bytes(&source, key, 0)
            count = read_count(&source)
            while count:
                for n in range(count):
                    names.append(self.class_names[read_byte(&source) >> 1])
                count = read_count(&source)
        retention = retention_of(tuple(names), timestamp_ms * 1_000)
        rule.count, rule.elements = len(names), b"".join(_sized(name) for name in names)
        rule.name = _sized(class_of_row(retention.retention_class, self.event_type_text))
        rule.period_us = retention.retain_until - timestamp_ms * 1_000
        rule.is_personal = retention.personal_until is not None
        return rule

def _sized(text):
    encoded = text.encode()
    assert len(encoded) < 128
    return bytes([len(encoded)]) + encoded

def _named_types(schema):
    # The named types that a schema spells out; it names them from then on.
    if isinstance(schema, list):
        return {name: found for branch in schema for name, found in _named_types(branch).items()}
    if not isinstance(schema, dict):
        return {}
    own = {schema["name"]: schema} if schema["type"] in ("record", "enum") else {}
    inner = [field["type"] for field in schema.get("fields", ())] + [schema.get("items"), schema.get("values")]
    return own | {name: found for part in inner for name, found in _named_types(part).items()}

def _fits(schema, kind):
    # Whether a field of the envelope is of a kind.
    if kind == CLASSES:
        items = schema["items"] if isinstance(schema, dict) and schema["type"] == "array" else None
        return isinstance(items, dict) and items["type"] == "enum"
    if isinstance(schema, list):
        return schema[0] == "null" and len(schema) == 2 and (
            kind == MAYBE_TEXT and schema[1] == "string" or kind == MAYBE_NUMBER and schema[1] in ("int", "long"))
    name = schema if isinstance(schema, str) else schema["type"]
    if kind == TEXT:
        return name == "string"
    return kind in (NUMBER, SHORT_NUMBER) and name in ("int", "long")

def _make_plan(header):
    # Returns None if events with this header are left to the Python.
    writer = writer_schemas().get(header[2:]) if header[:2] == SINGLE_OBJECT else None
    format_ = None if writer is None else format_by_name(writer.full_name)
    if format_ is None or not format_.is_event:
        return None
    try:
        return EventPlan(format_, writer.parsed)
    except (NotImplementedError, KeyError):
        return None

cdef dict _plans = {}

cdef EventPlan find_plan(bytes value):
    header = value[:10]
    cdef PyObject *known = PyDict_GetItem(_plans, header)
    if known != NULL:
        return <EventPlan>known
    plan = _make_plan(header)
    if header[2:] in writer_schemas():  # there is no end of other headers
        _plans[header] = plan
    return plan
