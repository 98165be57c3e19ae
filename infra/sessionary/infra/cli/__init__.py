"""The command line: `sessionary`.

    app.py      the commands' tree, and how an error becomes one line and an exit code
    errors.py   exit codes
    output.py   tables for people, JSON lines for programs, progress on stderr
    options.py  options that several commands share
    roles.py    broker, clickhouse, processor, sink: one process each, for production and for `up`
    stack.py    up
    playing.py  demo, load
    query.py    sessions, show, timeline, sql
    rejected.py rejected list, show, replay
    admin.py    topics apply, db migrate
    doctor.py   doctor

What is slow to import (Faust, ClickHouse's driver, the engine) is imported by the command that needs it.
"""

from sessionary.infra.cli.app import main

__all__ = ["main"]
