"""Any exception of a run as an error that says what to do."""

from __future__ import annotations

import os
import re
import traceback

# One function for every room; `tune`, which may not import `data`, imports it from here.
from hasten.data.loading.data_errors import is_out_of_memory as is_out_of_memory
from hasten.errors import INTERRUPTED, TERMINATED, HastenError, OutOfMemory, StorageFailed, Terminated, UserCodeFailed
from hasten.parallel.launch.failure_store import Cause
from hasten.training.failures.user_code import AT_A_STEP, IN_AN_EVALUATION, IN_THE_JOB, note_of, user_code_failed
from hasten.users_code import reason_of, text_of

_NO_GRADIENT = "does not require grad and does not have a grad_fn"  # torch's words
_NO_PENALTY = (
    "leave out of evaluations what needs a gradient: if torch.is_grad_enabled(), or give Job(eval_loss=…); "
    "or compute it under torch.enable_grad()"
)


def as_failure(error: BaseException) -> HastenError | None:
    """The error to show and to end with; None where the cause is neither the user's code nor the machine."""
    if isinstance(error, HastenError):
        return error
    if isinstance(error, KeyboardInterrupt):
        return None
    if is_out_of_memory(error):
        what = str(error).partition("\n")[0]
        return OutOfMemory(what, fix="make the microbatch smaller: hasten explain microbatch")
    if unloadable := _unloadable(error):
        return unloadable
    failure = user_code_failed(error) or _in_the_job(error)
    if failure is None and isinstance(error, SystemExit):  # by a library; hasten itself never does
        failure = UserCodeFailed(f"the job asked Python to exit: {error!r}", fix="find what calls sys.exit()")
    moment = note_of(error, AT_A_STEP, IN_AN_EVALUATION)
    if failure is not None and moment is not None:
        what, fix = failure.what, failure.fix
        if _NO_GRADIENT in text_of(error) and moment.startswith(IN_AN_EVALUATION):
            what, fix = f"evaluations compute no gradients: {what}", _NO_PENALTY
        failure = UserCodeFailed(f"{what} ({moment})", where=failure.where, fix=fix)
    return failure


def cause_of(error: BaseException) -> Cause:
    """What the other ranks of a run report of it."""
    if isinstance(error, KeyboardInterrupt):
        terminated = isinstance(error, Terminated)
        return Cause(code=TERMINATED if terminated else INTERRUPTED, what="was asked to end")
    failure = as_failure(error)
    if failure is None:
        return Cause(code=HastenError.exit_code, what=reason_of(error))
    return Cause(code=failure.exit_code, what=": ".join(filter(None, (failure.where, failure.what))))


def _unloadable(error: BaseException) -> StorageFailed | None:
    """For a file in the folder of compiled code that is incomplete, because a run was killed while it linked."""
    folder = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    text = f"{type(error).__name__}: {text_of(error)}"
    found = re.search(rf"ImportError: {re.escape(folder)}{os.sep}(.*)", text) if folder else None
    if found is None:
        return None
    what = f"compiled code in this folder cannot be loaded: {found[1]}"
    return StorageFailed(what, where=folder or "", fix="remove the folder: code is compiled again when it is needed")


def _in_the_job(error: BaseException) -> UserCodeFailed | None:
    """For what a library raised in a function or an object of the job: no line is the user's, but the cause is."""
    note = note_of(error, IN_THE_JOB)
    innermost = [frame.name for frame in traceback.extract_tb(error.__traceback__)][-1:]
    if note is None and innermost == ["_engine_run_backward"]:  # where torch's autograd enters C++
        note = f"{IN_THE_JOB}loss, in its backward pass"
    if note is None:
        return None
    where = note.removeprefix("in ").partition(",")[0]
    fix = _FIXES[where]
    if note.endswith("backward pass"):
        fix = "change no tensor in place that the gradient needs, and detach() what is kept from one step to the next"
    return UserCodeFailed(f"{reason_of(error)} ({note})", where=where, fix=fix)


_FIXES = dict.fromkeys(
    ("Job.loss", "Job.eval_loss", "Job.metrics"), "check shapes and dtypes of model, loss, metrics and data"
) | {"Job.schedule": "let each of its functions return a real number", "Job.optimizer": "check its arguments"}
