"""The place in the user's own code that an exception came through, if there is one."""

from __future__ import annotations

import sys
import traceback

from hasten.errors import UserCodeFailed
from hasten.users_code import is_users_file, reason_of, short

# How the notes begin that an exception carries: of a field of the job, with what it was given; of a step, with its
# number, its samples and the seed; of an evaluation, with its samples.
IN_THE_JOB, AT_A_STEP, IN_AN_EVALUATION = "in Job.", "at optimizer step ", "in an evaluation"


def note_of(error: BaseException, *beginnings: str) -> str | None:
    return next((note for note in getattr(error, "__notes__", ()) if note.startswith(beginnings)), None)


def other_notes(error: BaseException) -> list[str]:
    """Notes about further failures, and notices that could not be logged."""
    places = (AT_A_STEP, IN_AN_EVALUATION, IN_THE_JOB)
    return [note for note in getattr(error, "__notes__", ()) if not note.startswith(places)]


def user_code_failed(error: BaseException) -> UserCodeFailed | None:
    """The error to end with when the user's code raised `error`, or called what raised it; else None.

    The user's code is every file that belongs neither to this package nor to Python or what is installed in it. The
    innermost such place is named, because that is where a mistake can be corrected.
    """
    if isinstance(error, SyntaxError) and error.filename is not None and is_users_file(error.filename):
        shown = f"{type(error).__name__}: {error.msg}"
        return UserCodeFailed(shown, where=f"{short(error.filename)}:{error.lineno}", fix="fix this line")
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_users_file(frame.filename)]
    if not frames:  # a library may have raised it from another one, as Python does of StopIteration in a generator
        return None if error.__cause__ is None else user_code_failed(error.__cause__)
    place = frames[-1]
    where = f"{short(place.filename)}:{place.lineno}, in {place.name}"
    fix = f"fix this line: {place.line}" if place.line else "fix this line"
    if isinstance(error, ModuleNotFoundError) and error.name:
        module = error.name.partition(".")[0]
        fix = f"install {module} for {sys.executable}, which runs hasten, or correct this line: {place.line}"
    return UserCodeFailed(reason_of(error), where=where, fix=fix)
