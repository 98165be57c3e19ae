"""Builds the compiled core: the same Python modules, as extensions of the interpreter.

    modules      which modules are compiled
    codec_text   readers and writers of Avro records for Cython, below codec_head.pyx
    check_text   the checks of events' values for Cython, in the same module
    fast_replace the module of that name for Cython
    event_columns  the module of that name, below payload_steps.pyx and event_plans.pyx
    avro_reading   what the codec's text and that of event_columns begin with
    cached_globals  lets mypyc's C look a module's names up once, as cached_globals.h says
    toolchain    what a build needs, and what of it is missing
    compile      makes the extensions, in a process of its own
    build        starts that process: for a tree of sources, or for a wheel
    tree         where extensions lie in a tree of sources, and which are older than their source
    interpreters finds the interpreters of this machine for which wheels can be built
    wheels       python -m native.wheels: builds the pure wheel, and one for each interpreter
    __main__     python -m native

An extension lies beside the module that it was made of, and the interpreter prefers it. Without one
the Python runs: it does the same, slower. Nothing but speed may depend on which of the two runs.
"""
