"""Makes the readers and writers of Avro records: straight-line Python, from the schemas.

    schemas    what is made: every schema that this version knows, and the class of each
    source     the text of a module as it grows
    readers    the text of readers
    writers    the text of writers
    modules    the text of all modules, and the files that have it
    hook       makes the files when the package is built or installed
    __main__   python -m generation
    async_faces  makes the client's asyncio faces from those for threads, which are committed
    face_tables  what differs by nature between the two

The files lie in `sessionary/schemas/codec/generated` and are not committed. They are made from
whatever schemas and classes are there. Without them fastavro reads and writes everything, slower.
"""
