"""Measurements of the whole pipeline: `python -m benchmarks`, or `make bench`.

    __main__         the command line: runs measurements, prints tables, writes results
    measurements/    the measurements: one module each
    workload/        events made from recorded agent runs
    programs/        processes that a measurement starts beside the pipeline
    harness/         servers, processor, and observations from outside: offsets, CPU time, memory
    bench            options, progress lines, repetition
    results          figures, results files, tables
    walks            counts the files from the client to a verdict: `python -m benchmarks.walks`
    machine          the machine, the versions and the commit of a measurement

README.md explains each figure.
"""
