"""Finding and checking the user's two functions: `module:function`, async, with the right parameters.

Called in the worker template process only, so that a module that hangs or ends the process at import cannot
harm the trainer. Standard library only.
"""

import importlib
import inspect
from collections.abc import Callable
from typing import Any

WORKFLOW_PARAMETERS = ("task", "model")
JUDGE_PARAMETERS = ("task", "response")
OPTIONAL_PARAMETERS = ("auxiliary_models", "logger")

UserFunction = Callable[..., Any]


class EntrypointProblem(Exception):  # noqa: N818 - told to the user, not handled as a failure of ours
    """One sentence that says what to change."""


def load(field: str, entrypoint: str, parameters: tuple[str, ...]) -> UserFunction:
    """Import and check one function.

    Args:
        field: the spec's field, for messages: `workflow.entrypoint` or `workflow.judge`.
        entrypoint: `module:function`.
        parameters: names of the parameters that it must have; OPTIONAL_PARAMETERS may follow in any order.

    Raises:
        EntrypointProblem: the function is not there or has another form.
        Exception: whatever the module itself raises at import.
    """
    module_name, _, function_name = entrypoint.partition(":")
    if not module_name or not function_name:
        raise EntrypointProblem(f"{field} {entrypoint!r} must read `module:function`")
    function = getattr(_module(field, module_name), function_name, None)
    if function is None:
        raise EntrypointProblem(f"{field}: module {module_name} has no function {function_name!r}")
    if not inspect.iscoroutinefunction(function):
        raise EntrypointProblem(f"{field} {entrypoint} is not async: write `async def {function_name}(...)`")
    _check_parameters(f"{field} {entrypoint}", function, parameters)
    return function  # type: ignore[no-any-return]


def _module(field: str, name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(error.name + ".")):
            raise  # the user's module imports something that is not installed: their own traceback says it best
        text = f"{field}: there is no module {name}; put it into the image or into workflow.source (on PYTHONPATH)"
        raise EntrypointProblem(text) from error


def _check_parameters(what: str, function: UserFunction, required: tuple[str, ...]) -> None:
    parameters = inspect.signature(function).parameters
    wanted = f"it must be `async ({', '.join(required)}[, {'][, '.join(OPTIONAL_PARAMETERS)}])`"
    if variadic := [name for name, item in parameters.items() if item.kind in (item.VAR_POSITIONAL, item.VAR_KEYWORD)]:
        raise EntrypointProblem(f"{what} has a variable parameter {variadic[0]!r}: {wanted}")
    if missing := [name for name in required if name not in parameters]:
        raise EntrypointProblem(f"{what} lacks the parameter {missing[0]!r}: {wanted}")
    known = (*required, *OPTIONAL_PARAMETERS)
    for name, item in parameters.items():
        if name not in known and item.default is item.empty:
            raise EntrypointProblem(f"{what} has an unknown parameter {name!r}: {wanted}")
        if item.kind is item.POSITIONAL_ONLY:
            raise EntrypointProblem(f"{what} takes {name!r} by position only: {wanted}, passed by name")


def accepted_options(function: UserFunction) -> tuple[str, ...]:
    """The optional parameters that a function has."""
    parameters = inspect.signature(function).parameters
    return tuple(name for name in OPTIONAL_PARAMETERS if name in parameters)
