"""Builds the compiled core: the same Python modules, as extensions of the interpreter.

    modules      which modules are compiled
    codec_text   readers and writers of Avro records for Cython, below codec_head.pyx
    check_text   the checks of events' values for Cython, in the same module
    fast_replace the module of that name for Cython
    event_columns  the module of that name, below payload_steps.pyx and event_plans.pyx
    avro_reading   what the codec's text and that of event_columns begin with
    toolchain    what a build needs, and what of it is missing
    compile      makes the extensions, in a process of its own
    tree         where extensions lie in a tree of sources, and which are older than their source
    __main__     python -m native

An extension lies beside the module that it was made of, and the interpreter prefers it. Without one
the Python runs: it does the same, slower. Nothing but speed may depend on which of the two runs.
"""
