/* A module's names in the C that mypyc writes: looked up once, and again when the module has changed.

   mypyc looks each name that it does not know as native, such as a named tuple's class, up in the module's
   dictionary each time. Until Python 3.13 a dictionary has a number that no other one ever has, and that
   every change replaces; so while it is the same, the value is. Later interpreters look the names up. */

#ifndef SESSIONARY_CACHED_GLOBALS_H
#define SESSIONARY_CACHED_GLOBALS_H

#if PY_VERSION_HEX < 0x030E0000 && !defined(Py_GIL_DISABLED)

typedef struct {
    uint64_t version; /* of the dictionary; no dictionary has 0 */
    PyObject *value;  /* the dictionary has the reference */
} CachedGlobal;

/* Python 3.12 and 3.13 call the number deprecated, which mypyc's flags make an error. */
#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#elif defined(_MSC_VER)
#pragma warning(push)
#pragma warning(disable : 4996)
#endif

static inline uint64_t version_of_globals(PyObject *globals) {
    return ((PyDictObject *)globals)->ma_version_tag;
}

#if defined(__GNUC__)
#pragma GCC diagnostic pop
#elif defined(_MSC_VER)
#pragma warning(pop)
#endif

static inline PyObject *cached_global(PyObject *globals, PyObject *name, CachedGlobal *found) {
    uint64_t version = version_of_globals(globals);
    PyObject *value;
    if (likely(found->version == version)) {
        Py_INCREF(found->value);
        return found->value;
    }
    value = CPyDict_GetItem(globals, name);
    if (value != NULL) {
        found->version = version;
        found->value = value;
    }
    return value;
}

#define CACHED_GLOBAL(value, globals, name) \
    do { \
        static CachedGlobal found; \
        value = cached_global(globals, name, &found); \
    } while (0)

#else
#define CACHED_GLOBAL(value, globals, name) value = CPyDict_GetItem(globals, name)
#endif

#endif
