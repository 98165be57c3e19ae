"""The functions of tasks, by the type of task."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, TypeVar

from sessionary.producers.errors import Invalid

# Takes a `TaskContext` and the task's input; returns its result, as JSON can hold it, or awaits it.
TaskFunction = Callable[..., Any]
FunctionT = TypeVar("FunctionT", bound=TaskFunction)
_ATTRIBUTE = "__sessionary_task_type__"


def task(task_type: str) -> Callable[[FunctionT], FunctionT]:
    """Mark a function as the one that carries out tasks of a type.

        @task("model_training")
        def train(ctx: TaskContext, input: dict) -> dict: ...

    It takes a `TaskContext` and the task's input, and returns the result. It may be a coroutine
    function. After the death of a worker it is called again for the same task.
    """

    def mark(function: FunctionT) -> FunctionT:
        setattr(function, _ATTRIBUTE, task_type)
        return function

    return mark


def functions_of(module: str) -> Mapping[str, TaskFunction]:
    """Return the marked functions of a module, which is imported.

    Raises `Invalid` if it has none, or two of one type; and what importing it raises.
    """
    found: dict[str, TaskFunction] = {}
    for function in vars(import_module(module)).values():
        task_type = getattr(function, _ATTRIBUTE, None)
        if not isinstance(task_type, str):
            continue
        if found.setdefault(task_type, function) is not function:
            raise Invalid("invalid_value", f"module {module} has two functions of tasks of type {task_type}")
    if not found:
        raise Invalid("invalid_value", f"module {module} has no function that is marked with @task")
    return found
