"""Any exception of a run as an error that says what to do."""

from __future__ import annotations

# One function for every room; `tune`, which may not import `data`, reaches it through this one.
from hasten.data.out_of_memory import is_out_of_memory as is_out_of_memory
from hasten.errors import HastenError, OutOfMemory, UserCodeFailed
from hasten.training.losses import IN_THE_LOSS
from hasten.training.user_code import user_code_failed


def as_failure(error: Exception) -> HastenError | None:
    """The error to show and to end with; None for what neither the user's code nor the machine has to do with."""
    if isinstance(error, HastenError):
        return error
    if is_out_of_memory(error):
        what = str(error).partition("\n")[0]
        return OutOfMemory(what, fix="make the microbatch smaller: hasten explain microbatch")
    return user_code_failed(error) or _in_the_loss(error)


def _in_the_loss(error: Exception) -> UserCodeFailed | None:
    """What torch or `supervised` raised inside the job's loss: no line of it is the user's, but the cause is."""
    note = next((note for note in getattr(error, "__notes__", ()) if note.startswith(IN_THE_LOSS)), None)
    if note is None:
        return None
    what = f"{type(error).__name__}: {' '.join(str(error).split())}"
    return UserCodeFailed(f"{what} ({note})", where="Job.loss", fix="make model, loss and data fit each other")
