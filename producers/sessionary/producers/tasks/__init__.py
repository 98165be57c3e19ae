"""Long tasks: detached runs that workers carry out without the client that asked for them.

    functions    the functions that workers know, by the type of task
    context      what a task's function reports while it works; beats while it is silent
    sender       the events of one task
    attempt      one task from its claim to its end
    worker       takes requests, and carries out several tasks at once

`Session.start_task` asks for a task; `sessionary serve task-worker` runs a worker.
"""

from sessionary.producers.tasks.attempt import TaskTimes
from sessionary.producers.tasks.context import TaskContext
from sessionary.producers.tasks.functions import TaskFunction, functions_of, task
from sessionary.producers.tasks.worker import TaskWorker

__all__ = ["TaskContext", "TaskFunction", "TaskTimes", "TaskWorker", "functions_of", "task"]
