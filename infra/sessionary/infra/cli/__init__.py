"""The command line: `sessionary`.

    entry         where a process begins; says which extra is missing
    extras        which extra brings a module that is not installed
    app           the tree of commands; turns an error into one line and an exit code
    commands/     one module per command or group of commands
    options       options that several commands share, and clients made from them
    tables        rows and objects: tables on a terminal, JSON lines elsewhere
    progress      the progress line of a long command
    part_reports  which processes of the local stack ended, and why
    output        lines on stdout and stderr
    errors        errors of commands, and the exit code of every expected error
    __main__      `python -m sessionary.infra.cli`

A command imports what is slow to load (Faust, ClickHouse's driver, the engine) when it runs, so
that `sessionary --help` stays fast.
"""

from sessionary.infra.cli.entry import main

__all__ = ["main"]
