# cython: language_level=3, boundscheck=False, wraparound=False, binding=False, infer_types=False
# Bytes of Avro, read in C. Every length is compared with what is left; memory is only touched within
# it. At anything but the plain form a function raises `ValueError` or `IndexError`.

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy

cdef struct In:
    const unsigned char *data
    Py_ssize_t at
    Py_ssize_t end

cdef inline int open_bytes(In *i, object value, Py_ssize_t start) except -1:
    if type(value) is not bytes or start < 0:
        raise ValueError
    i.data = <const unsigned char *>PyBytes_AS_STRING(value)
    i.at = start
    i.end = PyBytes_GET_SIZE(value)
    return 0

cdef inline int read_byte(In *i) except -1:
    if i.at >= i.end:
        raise IndexError
    i.at += 1
    return i.data[i.at - 1]

cdef inline int64_t read_number(In *i) except? -1:
    cdef uint64_t number = 0
    cdef int byte, shift = 0
    while True:
        byte = read_byte(i)
        number |= (<uint64_t>(byte & 127)) << shift
        if byte < 128:
            return <int64_t>(number >> 1) ^ -<int64_t>(number & 1)
        shift += 7
        if shift > 56:  # a number of ten bytes may be beyond 64 bits
            raise ValueError

cdef inline Py_ssize_t read_length(In *i) except -1:
    cdef int64_t length = read_number(i)
    if length < 0 or length > i.end - i.at:
        raise ValueError
    return length

cdef inline bint is_there(In *i) except -1:
    cdef int branch = read_byte(i)
    if branch == 2:
        return True
    if branch:
        raise ValueError
    return False

cdef inline int read_count(In *i) except -1:
    # Of the items of a block; 0 ends the blocks.
    cdef int count = read_byte(i)
    if count > 127 or count & 1:
        raise ValueError
    return count >> 1

cdef inline int skip_string(In *i) except -1:
    i.at += read_length(i)
    return 0

cdef inline int skip_long(In *i) except -1:
    read_number(i)
    return 0
