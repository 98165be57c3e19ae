"""Long tasks: detached runs that workers carry out without the client that asked for them.

    context      the context of a task's function, and its sender
    worker       a worker, its functions, and one attempt at a task

`Session.start_task` asks for a task; `sessionary serve task-worker` runs a worker.
"""

from sessionary.producers.tasks.context import TaskContext
from sessionary.producers.tasks.worker import TaskFunction, TaskTimes, TaskWorker, functions_of, task

__all__ = ["TaskContext", "TaskFunction", "TaskTimes", "TaskWorker", "functions_of", "task"]
