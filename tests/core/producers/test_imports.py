"""What an agent imports is small, and says what it is."""

import importlib
import pkgutil
import subprocess
import sys

import pytest

import sessionary.producers

# The core install's dependencies and what they are made of.
_ALLOWED = {
    *("annotated_types", "pydantic", "pydantic_core", "typing_extensions", "typing_inspection"),
    *("confluent_kafka", "fastavro", "sessionary"),
    "sessionary_core__mypyc",  # the code of a native build's modules
    # Compression codecs, which fastavro loads where they happen to be installed.
    *("backports", "cramjam", "cython_runtime", "lz4", "zstandard"),
}
_LIST = """
import sys
before = set(sys.modules)
import sessionary.producers, sessionary.producers.testing
names = {name.partition(".")[0] for name in set(sys.modules) - before}
print("\\n".join(sorted(names - set(sys.stdlib_module_names))))
print("\\n".join(sorted(n for n in sys.modules if n.startswith("sessionary.") and n.count(".") == 1)))
"""

# A schema is parsed, and its fingerprint is computed, when its first value is written or read.
_COUNT = """
import sys
from collections import Counter
calls = Counter()
def count_call(frame, event, argument):
    if event == "call":
        calls[frame.f_code.co_name] += 1
sys.setprofile(count_call)
import sessionary.producers
from sessionary.schemas.codec import catalogue, formats
at_import = calls["schema_fingerprint"], calls["parsed_schema"]
from sessionary.schemas.events import Heartbeat
formats._CURRENT_FORMATS[Heartbeat]
print(*at_import, calls["schema_fingerprint"], calls["parsed_schema"])
"""


# Takes as long to load as all else together; a client for threads needs it later or never.
_LATER = ("asyncio", "concurrent.futures", "confluent_kafka", "pydantic", "ssl", "urllib.request")


def test_importing_the_client_for_threads_loads_nothing_that_can_wait() -> None:
    program = f"import sys; from sessionary.producers import SessionClient; print(*set({_LATER}) & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.split() == []


def test_every_name_of_the_package_can_be_used() -> None:
    for name in sessionary.producers.__all__:
        assert getattr(sessionary.producers, name) is not None
    assert set(sessionary.producers.__all__) <= set(dir(sessionary.producers))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = sessionary.producers.nothing


def test_importing_the_client_prepares_no_schema() -> None:
    done = subprocess.run([sys.executable, "-c", _COUNT], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.split() == ["0", "0", "1", "1"]


def test_importing_the_client_loads_the_core_dependencies_only() -> None:
    done = subprocess.run([sys.executable, "-c", _LIST], capture_output=True, text=True, check=True, timeout=300)
    names = {name for name in done.stdout.split() if not name.startswith(("_", "sessionary."))}
    assert names <= _ALLOWED
    roles = {name for name in done.stdout.split() if name.startswith("sessionary.")}
    assert roles == {"sessionary.producers", "sessionary.schemas"}


def test_every_list_of_exports_names_what_is_there() -> None:
    for found in pkgutil.walk_packages(sessionary.producers.__path__, "sessionary.producers."):
        if found.ispkg:
            continue
        module = importlib.import_module(found.name)
        assert all(hasattr(module, name) for name in getattr(module, "__all__", ())), found.name
