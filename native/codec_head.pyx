
# Readers and writers of Avro records, made by `python -m native` from the schemas: those of
# `generation`, in C. They agree with fastavro or give up. avro_reading.pyx comes before this text.

from cpython.float cimport PyFloat_AsDouble
from cpython.long cimport PyLong_AsLongLong, PyLong_AsLongLongAndOverflow
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_SET_ITEM
from libc.math cimport isfinite

from types import MappingProxyType

from sessionary.schemas.codec.compiled_helpers import fits
from sessionary.schemas.limits import NUMBER_MAX as number_max

cdef long long NUMBER_MAX = number_max

cdef extern from *:
    """
    /* As tuple.__new__, for an instance whose items are put right afterwards. */
    static PyObject *new_instance(PyObject *cls, Py_ssize_t items) {
        PyObject *made = ((PyTypeObject *)cls)->tp_alloc((PyTypeObject *)cls, items);
    #if PY_VERSION_HEX >= 0x030E0000
        if (made != NULL) ((PyTupleObject *)made)->ob_hash = -1;
    #endif
        return made;
    }
    """
    object new_instance(object cls, Py_ssize_t items)
    bint PyUnicode_IS_COMPACT_ASCII(object text)
    char *PyUnicode_1BYTE_DATA(object text)
    Py_ssize_t PyUnicode_GET_LENGTH(object text)
    int PyFloat_Pack8(double value, char *place, int little_endian) except -1
    double PyFloat_Unpack8(const char *place, int little_endian) except? -1.0

cdef inline void put(object record, Py_ssize_t place, object value):
    Py_INCREF(value)
    PyTuple_SET_ITEM(record, place, value)

cdef inline object item(object record, Py_ssize_t place):
    return <object>PyTuple_GET_ITEM(record, place)

cdef inline object read_string(In *i):
    cdef Py_ssize_t length = read_length(i)
    i.at += length
    return PyUnicode_DecodeUTF8(<const char *>i.data + i.at - length, length, NULL)

cdef inline object read_bytes(In *i):
    cdef Py_ssize_t length = read_length(i)
    i.at += length
    return PyBytes_FromStringAndSize(<const char *>i.data + i.at - length, length)

cdef inline object read_long(In *i):
    return read_number(i)

cdef inline object read_boolean(In *i):
    cdef int byte = read_byte(i)
    if byte > 1:
        raise ValueError
    return True if byte else False

cdef inline object read_double(In *i):
    if i.end - i.at < 8:
        raise ValueError
    i.at += 8
    return PyFloat_Unpack8(<const char *>i.data + i.at - 8, 1)

cdef inline object read_symbol(In *i, tuple symbols):
    cdef int byte = read_byte(i)
    if byte > 127 or byte & 1 or byte >> 1 >= PyTuple_GET_SIZE(symbols):
        raise ValueError
    return item(symbols, byte >> 1)

cdef enum:
    LOCAL_BYTES = 2048

cdef struct Out:
    char *data
    Py_ssize_t at
    Py_ssize_t end
    char local[LOCAL_BYTES]

cdef int grow(Out *o, Py_ssize_t more) except -1:
    cdef Py_ssize_t end = 2 * (o.at + more)
    cdef char *data
    if o.data == &o.local[0]:
        data = <char *>malloc(end)
        if data != NULL:
            memcpy(data, o.data, o.at)
    else:
        data = <char *>realloc(o.data, end)
    if data == NULL:
        raise MemoryError
    o.data, o.end = data, end
    return 0

cdef inline int reserve(Out *o, Py_ssize_t more) except -1:
    if o.end - o.at < more:
        grow(o, more)
    return 0

cdef inline int write_raw(Out *o, const char *data, Py_ssize_t length) except -1:
    reserve(o, length)
    memcpy(o.data + o.at, data, length)
    o.at += length
    return 0

cdef inline int open_output(Out *o, object header) except -1:
    o.data, o.at, o.end = &o.local[0], 0, LOCAL_BYTES
    if type(header) is not bytes:
        raise TypeError
    return write_raw(o, PyBytes_AS_STRING(header), PyBytes_GET_SIZE(header))

cdef inline object written(Out *o):
    return PyBytes_FromStringAndSize(o.data, o.at)

cdef inline void close_output(Out *o) noexcept:
    if o.data != &o.local[0]:
        free(o.data)

cdef inline int write_byte(Out *o, int byte) except -1:
    reserve(o, 1)
    o.data[o.at] = <char>byte
    o.at += 1
    return 0

cdef inline int write_number(Out *o, int64_t number) except -1:
    cdef uint64_t rest = (<uint64_t>number << 1) ^ <uint64_t>(number >> 63)
    reserve(o, 10)
    while rest > 127:
        o.data[o.at] = <char>(rest & 127 | 128)
        o.at += 1
        rest >>= 7
    o.data[o.at] = <char>rest
    o.at += 1
    return 0

cdef inline int write_long(Out *o, object value) except -1:
    if type(value) is not int:
        raise TypeError
    return write_number(o, PyLong_AsLongLong(value))

cdef inline int write_int(Out *o, object value) except -1:
    cdef int64_t number
    if type(value) is not int:
        raise TypeError
    number = PyLong_AsLongLong(value)
    if number < -2147483648 or number > 2147483647:
        raise ValueError
    return write_number(o, number)

cdef inline int write_bytes(Out *o, object value) except -1:
    if type(value) is not bytes:
        raise TypeError
    write_number(o, PyBytes_GET_SIZE(value))
    return write_raw(o, PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value))

cdef inline int write_string(Out *o, object value) except -1:
    if type(value) is not str:
        raise TypeError
    if not PyUnicode_IS_COMPACT_ASCII(value):
        return write_bytes(o, (<str>value).encode())  # a text would keep its bytes otherwise
    write_number(o, PyUnicode_GET_LENGTH(value))
    return write_raw(o, PyUnicode_1BYTE_DATA(value), PyUnicode_GET_LENGTH(value))

cdef inline int write_boolean(Out *o, object value) except -1:
    if type(value) is not bool:
        raise TypeError
    return write_byte(o, 1 if value is True else 0)

cdef inline int write_double(Out *o, object value) except -1:
    if type(value) is not float and type(value) is not int:
        raise TypeError
    reserve(o, 8)
    PyFloat_Pack8(PyFloat_AsDouble(value), o.data + o.at, 1)
    o.at += 8
    return 0

cdef inline int write_symbol(Out *o, object value, dict places) except -1:
    if type(value) is not str:
        raise TypeError
    return write_number(o, places[value])

cdef inline bint write_branch(Out *o, object value) except -1:
    # Returns whether the value is there, and is to be written.
    write_byte(o, 0 if value is None else 2)
    return value is not None

cdef inline tuple listed(object value):
    if type(value) is tuple:
        return <tuple>value
    if type(value) is not list:
        raise TypeError
    return tuple(<list>value)

cdef inline list paired(object value):
    if type(value) is not dict and type(value) is not MappingProxyType:
        raise TypeError
    return list(value.items())

cdef inline int check_record(object value, object cls, Py_ssize_t items) except -1:
    if type(value) is not cls or PyTuple_GET_SIZE(value) != items:
        raise TypeError
    return 0

cdef inline bint is_longer(object value, Py_ssize_t most) except -1:
    if type(value) is not str:
        raise TypeError
    return PyUnicode_GET_LENGTH(value) > most

cdef inline bint is_out_of_bounds(object value) except -1:
    cdef int overflow = 0
    cdef long long number
    if type(value) is not int:
        raise TypeError
    number = PyLong_AsLongLongAndOverflow(value, &overflow)
    return overflow or number < 0 or number > NUMBER_MAX

cdef inline bint is_infinite(object value) except -1:
    if type(value) is not float:
        raise TypeError
    return not isfinite(PyFloat_AsDouble(value))
