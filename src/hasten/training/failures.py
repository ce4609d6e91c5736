"""Any exception of a run as an error that says what to do."""

from __future__ import annotations

from hasten.errors import HastenError, OutOfMemory
from hasten.training.out_of_memory import is_out_of_memory
from hasten.training.user_code import user_code_failed


def as_failure(error: Exception) -> HastenError | None:
    """The error to show and to end with; None for what neither the user's code nor the machine has to do with."""
    if isinstance(error, HastenError):
        return error
    if is_out_of_memory(error):
        what = str(error).partition("\n")[0]
        return OutOfMemory(what, fix="make the microbatch smaller: hasten explain microbatch")
    return user_code_failed(error)
