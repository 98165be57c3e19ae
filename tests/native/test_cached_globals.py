"""Which look-ups of a module's names in mypyc's C are made once."""

import ctypes
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

from native.cached_globals import HEADER, cache_globals
from native.interpreters import VERSIONS, find_interpreters

_TEXT = """#include "one.h"
#include "two.h"

PyObject *CPyDef_rules___judge(void) {
    cpy_r_r1 = CPyStatic_rules___globals;
    cpy_r_r2 = CPyStatics[7]; /* 'Decision' */
    cpy_r_r3 = CPyDict_GetItem(cpy_r_r1, cpy_r_r2);
    cpy_r_r4 = CPyStatics[8]; /* 'Fault' */
    cpy_r_r5 = CPyDict_GetItem(cpy_r_r9, cpy_r_r4);
    cpy_r_r6 = CPyStatic_rules___globals;
    cpy_r_r7 = CPyStatics[9]; /* 'Arrival' */
    cpy_r_r8 = CPyDict_GetItem(cpy_r_r6, cpy_r_r2);
}
"""

# What the macro needs of mypyc, and one use of it.
_USE = f"""#include <Python.h>
#define likely(x) (x)
PyObject *CPyDict_GetItem(PyObject *dict, PyObject *key);
#include "{HEADER.as_posix()}"
PyObject *look_up(PyObject *globals, PyObject *name) {{
    PyObject *value;
    CACHED_GLOBAL(value, globals, name);
    return value;
}}
"""


def test_only_names_of_a_module_are_cached() -> None:
    text, found = cache_globals(_TEXT)
    assert found == 1
    assert re.findall(r"(cpy_r_r\d) = CPyDict_GetItem", text) == ["cpy_r_r5", "cpy_r_r8"]
    assert "    CACHED_GLOBAL(cpy_r_r3, cpy_r_r1, cpy_r_r2);\n" in text
    assert text.startswith(f'#include "one.h"\n#include "two.h"\n#include "{HEADER.as_posix()}"\n')
    assert HEADER.is_file()


def test_a_text_without_such_look_ups_stays_as_it_is() -> None:
    text = _TEXT.replace("CPyStatic_rules___globals", "other")
    assert cache_globals(text) == (text, 0)


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="there the look-ups stay: a dictionary has no such number")
def test_every_change_of_a_module_gives_its_dictionary_a_new_number() -> None:
    module = types.ModuleType("rules")
    names = vars(module)

    def number() -> int:
        # Behind the reference count, the type, and the number of items.
        return ctypes.c_uint64.from_address(id(names) + 3 * ctypes.sizeof(ctypes.c_void_p)).value

    found = [number()]
    for change in (
        lambda: setattr(module, "limit", 1),
        lambda: setattr(module, "limit", 2),
        lambda: names.update(limit=1),
        lambda: names.pop("limit"),
        lambda: exec("limit = 1", names),
    ):
        change()
        found.append(number())
        assert names.get("limit") != 0
        assert number() == found[-1]
    assert len(set(found)) == len(found)
    assert 0 not in found


@pytest.mark.parametrize("version", VERSIONS)
def test_the_header_compiles_without_a_warning_for_each_interpreter(version: str, tmp_path: Path) -> None:
    found = find_interpreters((version,))
    if not found:
        pytest.skip(f"no CPython {version} with headers was found")
    question = "import sysconfig; print(sysconfig.get_path('include'))"
    headers = subprocess.run([found[0].program, "-c", question], capture_output=True, text=True, check=True).stdout
    source = tmp_path / "use.c"
    source.write_text(_USE)
    # As mypyc compiles: a warning is an error.
    output = tmp_path / "use.o"
    command = ["cc", "-Wall", "-Werror", "-O2", f"-I{headers.strip()}", "-c", str(source), "-o", str(output)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
