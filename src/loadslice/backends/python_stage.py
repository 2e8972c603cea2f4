"""Python stages: functions of the user's own, run by engines whose backend is ``python``."""

from collections.abc import Callable
from pathlib import Path

from loadslice.spec.functions import load_function
from loadslice.spec.work import StageError, Work

StageFunction = Callable[[Work], Work]
"""``def prepare(work: Work) -> Work``; several threads may call it at once when its engine has several slots."""


def open_python_stage(reference: str, folder: Path) -> StageFunction:
    """Load a Python stage; what it returns is checked on every call.

    Args:
        reference: ``module:function``.
        folder: The folder of the pipeline file.

    Returns:
        A function that raises `StageInputError` as the stage does, and `StageError` for anything else that goes wrong.

    Raises:
        InputError: No such module or function.
    """
    function: StageFunction = load_function(reference, folder)

    def run(work: Work) -> Work:
        try:
            result = function(work)
        except StageError:
            raise
        except (Exception, SystemExit) as error:  # a stage that calls sys.exit fails its request, not the process
            raise StageError(f"{reference}: {type(error).__name__}: {error}") from error
        if not isinstance(result, Work):
            raise StageError(f"{reference}: returned {type(result).__name__}, not Work.")
        try:
            result.check()
        except ValueError as error:
            raise StageError(f"{reference}: {error}") from error
        return result

    return run
