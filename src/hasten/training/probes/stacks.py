"""Where another process is, and the line of the user's code there."""

from __future__ import annotations

from hasten.data.workers.process_stacks import Answer, threads_of

# `tune`, which may not import `data`, imports these from here.
from hasten.data.workers.process_stacks import ask as ask
from hasten.data.workers.process_stacks import write_stacks_when_asked as write_stacks_when_asked
from hasten.users_code import is_users_file, short

_SILENT = {"stopped": "it is stopped and cannot say where it is", "disk-sleep": "it waits in the kernel, as for a disk"}


def standing(answer: Answer) -> str:
    """A sentence on where the main thread is: the innermost line of the user's code, else the innermost of all."""
    threads = list(threads_of(answer.stacks))
    if not threads:
        return _SILENT.get(answer.state, "it does not say where it is")
    frames = threads[-1]
    theirs = next((frame for frame in frames if is_users_file(frame.file)), frames[0])
    return f"it is in {short(theirs.file)}:{theirs.line}, in {theirs.function}"
