"""The command line: `sessionary`.

    entry         the start of a process; reports a missing extra
    extras        the extra that a missing module needs
    app           the application; turns an error into one line and an exit code
    command_tree  the tree of all commands; imports a command's module when it is needed
    commands/     the commands' functions
    times         times as options take them: how long ago, a date, a full time
    options       options that several commands share, and clients made from them
    tables        rows and objects: tables on a terminal, JSON lines elsewhere
    file_formats  files of rows: Parquet, Arrow, CSV, JSON lines
    output        lines on stdout and stderr, and the progress line of a long command
    errors        errors of commands, and the exit code of every expected error
    __main__      `python -m sessionary.infra.cli`
    task_pages    a task worker's pages: /metrics, /healthz and /readyz

`sessionary --help` imports no command, and a command imports slow modules (Faust, ClickHouse's
driver, the engine) only when it runs: both answer at once.
"""

from sessionary.infra.cli.entry import main

__all__ = ["main"]
