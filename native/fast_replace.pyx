# cython: language_level=3, binding=False
"""`sessionary.schemas.fast_replace` in C: fields are replaced, and instances made, in place."""

import sys

cdef extern from *:
    """
    /* A new instance of a class of named tuples, whose items are empty. */
    static PyObject *empty_instance(PyTypeObject *cls, Py_ssize_t items) {
        PyObject *made = cls->tp_alloc(cls, items);
    #if PY_VERSION_HEX >= 0x030E0000
        if (made != NULL) ((PyTupleObject *)made)->ob_hash = -1;
    #endif
        return made;
    }

    static void put_item(PyObject *made, Py_ssize_t place, PyObject *value) {
        Py_INCREF(value);
        PyTuple_SET_ITEM(made, place, value);
    }

    /* make_replacer: `plan` is (class, places). */

    static PyObject *replace_places(PyObject *plan, PyObject *const *args, Py_ssize_t count) {
        PyTypeObject *cls = (PyTypeObject *)PyTuple_GET_ITEM(plan, 0);
        Py_ssize_t i, items, places = PyTuple_GET_SIZE(plan) - 2;
        PyObject *made, *old;
        if (count != places + 1) {
            PyErr_Format(PyExc_ValueError, "%zd arguments are needed, not %zd", places + 1, count);
            return NULL;
        }
        items = PyLong_AsSsize_t(PyTuple_GET_ITEM(plan, 1));
        if (!PyTuple_Check(args[0]) || PyTuple_GET_SIZE(args[0]) != items) {
            PyErr_SetString(PyExc_TypeError, "not a record of the class");
            return NULL;
        }
        if ((made = empty_instance(cls, items)) == NULL) return NULL;
        for (i = 0; i < items; i++) put_item(made, i, PyTuple_GET_ITEM(args[0], i));
        for (i = 0; i < places; i++) {
            Py_ssize_t place = PyLong_AsSsize_t(PyTuple_GET_ITEM(plan, i + 2));
            old = PyTuple_GET_ITEM(made, place);
            put_item(made, place, args[i + 1]);
            Py_DECREF(old);
        }
        return made;
    }

    static PyMethodDef replacer_method = {
        "replace_fields", (PyCFunction)(void (*)(void))replace_places, METH_FASTCALL, NULL};

    static PyObject *new_replacer(PyObject *plan) { return PyCFunction_New(&replacer_method, plan); }

    /* speed_up: a class's plan is (fields, defaults from the first field that has one, the Python `_replace`). */

    static PyObject *plans;  /* those of all classes, for ever */

    /* The plan of a class, or NULL; those that were asked for last are found without the dictionary. */
    static struct { PyObject *cls, *plan; } found_last[1024];

    static PyObject *plan_of(PyObject *cls) {
        size_t place = ((size_t)cls >> 4 ^ (size_t)cls >> 13) & 1023;
        PyObject *plan;
        if (found_last[place].cls == cls) return found_last[place].plan;
        if ((plan = PyDict_GetItem(plans, cls)) != NULL) {
            found_last[place].cls = cls;
            found_last[place].plan = plan;
        }
        return plan;
    }

    static Py_ssize_t place_of(PyObject *fields, PyObject *name, Py_ssize_t guess) {
        Py_ssize_t i, items = PyTuple_GET_SIZE(fields);
        if (guess < items && PyTuple_GET_ITEM(fields, guess) == name) return guess;
        for (i = 0; i < items; i++)
            if (PyTuple_GET_ITEM(fields, i) == name) return i;
        for (i = 0; i < items; i++)
            if (PyUnicode_Compare(PyTuple_GET_ITEM(fields, i), name) == 0) return i;
        return -1;
    }

    /* The call as Python makes it, which says what is wrong with it. */
    static PyObject *call_plainly(PyObject *cls, PyObject *const *args, Py_ssize_t count, PyObject *names) {
        PyObject *given = PyTuple_New(count), *named = NULL, *made = NULL;
        Py_ssize_t i;
        if (given == NULL) return NULL;
        for (i = 0; i < count; i++) put_item(given, i, args[i]);
        if (names != NULL) {
            if ((named = PyDict_New()) == NULL) goto done;
            for (i = 0; i < PyTuple_GET_SIZE(names); i++)
                if (PyDict_SetItem(named, PyTuple_GET_ITEM(names, i), args[count + i]) < 0) goto done;
        }
        made = PyType_Type.tp_call(cls, given, named);
    done:
        Py_DECREF(given);
        Py_XDECREF(named);
        return made;
    }

    static PyObject *make_instance(PyObject *cls, PyObject *const *args, size_t flags, PyObject *names) {
        Py_ssize_t i, place, items, count = PyVectorcall_NARGS(flags), named = names ? PyTuple_GET_SIZE(names) : 0;
        PyObject *fields, *made, *plan = plan_of(cls);
        if (plan == NULL) return call_plainly(cls, args, count, names);
        fields = PyTuple_GET_ITEM(plan, 0);
        items = PyTuple_GET_SIZE(fields);
        if (count + named > items) return call_plainly(cls, args, count, names);
        if ((made = empty_instance((PyTypeObject *)cls, items)) == NULL) return NULL;
        for (i = 0; i < count; i++) put_item(made, i, args[i]);
        for (i = 0; i < named; i++) {
            place = place_of(fields, PyTuple_GET_ITEM(names, i), count + i);
            if (place < 0 || PyTuple_GET_ITEM(made, place) != NULL) goto unusual;
            put_item(made, place, args[count + i]);
        }
        if (count + named < items) {
            PyObject *defaults = PyTuple_GET_ITEM(plan, 1);
            Py_ssize_t first = items - PyTuple_GET_SIZE(defaults);
            for (i = count; i < items; i++)
                if (PyTuple_GET_ITEM(made, i) == NULL) {
                    if (i < first) goto unusual;
                    put_item(made, i, PyTuple_GET_ITEM(defaults, i - first));
                }
        }
        return made;
    unusual:
        Py_DECREF(made);
        return call_plainly(cls, args, count, names);
    }

    static PyObject *replace_names(PyObject *record, PyObject *const *args, Py_ssize_t count, PyObject *names) {
        Py_ssize_t i, place, items, named = names ? PyTuple_GET_SIZE(names) : 0;
        PyObject *fields, *made, *old, *plan = plan_of((PyObject *)Py_TYPE(record));
        if (plan == NULL || count) goto unusual;
        fields = PyTuple_GET_ITEM(plan, 0);
        items = PyTuple_GET_SIZE(fields);
        if (PyTuple_GET_SIZE(record) != items) goto unusual;
        if ((made = empty_instance(Py_TYPE(record), items)) == NULL) return NULL;
        for (i = 0; i < items; i++) put_item(made, i, PyTuple_GET_ITEM(record, i));
        for (i = 0; i < named; i++) {
            place = place_of(fields, PyTuple_GET_ITEM(names, i), items);
            if (place < 0) {
                Py_DECREF(made);
                goto unusual;
            }
            old = PyTuple_GET_ITEM(made, place);
            put_item(made, place, args[i]);
            Py_DECREF(old);
        }
        return made;
    unusual: {
        /* By the Python method of the nearest class that has a plan. */
        PyTypeObject *cls = Py_TYPE(record);
        PyObject *given, *named_values, *result = NULL;
        while (cls != NULL && (plan = PyDict_GetItem(plans, (PyObject *)cls)) == NULL) cls = cls->tp_base;
        if (plan == NULL) {
            PyErr_SetString(PyExc_TypeError, "not a record");
            return NULL;
        }
        if ((given = PyTuple_New(count + 1)) == NULL) return NULL;
        put_item(given, 0, record);
        for (i = 0; i < count; i++) put_item(given, i + 1, args[i]);
        if ((named_values = PyDict_New()) != NULL) {
            for (i = 0; i < named; i++)
                if (PyDict_SetItem(named_values, PyTuple_GET_ITEM(names, i), args[count + i]) < 0) break;
            if (i == named) result = PyObject_Call(PyTuple_GET_ITEM(plan, 2), given, named_values);
            Py_DECREF(named_values);
        }
        Py_DECREF(given);
        return result;
    }
    }

    static PyMethodDef replace_method = {
        "_replace", (PyCFunction)(void (*)(void))replace_names, METH_FASTCALL | METH_KEYWORDS, NULL};

    static PyObject *replace_descriptor(PyObject *cls) { return PyDescr_NewMethod((PyTypeObject *)cls, &replace_method); }

    static void use_plans(PyObject *by_class) { Py_INCREF(by_class); plans = by_class; }

    /* From now on a call of the class is a call of `make_instance`. */
    static void set_vectorcall(PyObject *cls) { ((PyTypeObject *)cls)->tp_vectorcall = make_instance; }
    """
    object new_replacer(object plan)
    object replace_descriptor(object cls)
    void use_plans(object by_class)
    void set_vectorcall(object cls)

_plans = {}
use_plans(_plans)


def make_replacer(cls, *names):
    """Return a function (record, *values) that replaces the named fields of a NamedTuple."""
    fields = cls._fields
    places = tuple([fields.index(name) for name in names])
    return new_replacer((cls, len(fields), *places))


def speed_up(package):
    """Make instances of the named tuples of a package faster, and `_replace`."""
    for name, module in sorted(sys.modules.items()):
        if module is not None and (name == package or name.startswith(package + ".")):
            for cls in list(vars(module).values()):
                # Only what `NamedTuple` made: a class below one, or with another base, is left alone.
                if isinstance(cls, type) and cls.__module__ == name and cls.__bases__ == (tuple,):
                    if cls not in _plans and hasattr(cls, "_field_defaults"):
                        _speed_up(cls)


def _speed_up(cls):
    _plans[cls] = (cls._fields, tuple(cls._field_defaults.values()), cls.__dict__["_replace"])
    cls._replace = replace_descriptor(cls)
    set_vectorcall(cls)
