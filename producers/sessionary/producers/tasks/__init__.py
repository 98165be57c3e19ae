"""Long tasks: detached runs that workers carry out without the client that asked for them.

    answers      what a client is told of a task: its status, its result
    questions    the client's questions about tasks, by their id alone
    async_questions  the same for asyncio
    functions    the functions that workers know, by the type of task
    context      what a task's function reports while it works; beats while it is silent
    sender       the events of one task
    attempt      one task from its claim to its end
    worker       takes requests, and carries out several tasks at once

`Session.start_task` asks for a task; `sessionary task-worker` runs a worker.
"""
