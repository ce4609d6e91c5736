"""The error for a name that leads to no job: what a job is, and which functions of the file return one."""

from __future__ import annotations

import ast
from pathlib import Path

from hasten.errors import Misconfigured, NoJob
from hasten.facts.formatting import shortened
from hasten.regular_files import read_regular

A_JOB = "hasten.Job(model=…, loss=…, optimizer=…, train=…, batch_size=…, epochs=…)"
_LONGEST = 100  # characters of the names of functions


def no_job(what: str, name: str) -> NoJob:
    """what: is wrong with this name, which is "file.py:function" or "file.py". The file is read, and not executed."""
    place = name.rpartition(":")[0] or name
    functions = functions_in(place)
    jobs = [function for function, makes_a_job in functions.items() if makes_a_job]
    if jobs:
        return NoJob(what, where=name, fix=f"name a function that returns a job: {place}:{jobs[0]}")
    if functions:
        what += f"; of its functions {shortened(', '.join(functions), _LONGEST)}, none makes a hasten.Job"
    fix = f"a job is a function without arguments that returns {A_JOB}: add one, def job(), and name {place}:job"
    return NoJob(what, where=name, fix=fix)


def notebook(name: str) -> Misconfigured:
    place, _, function = name.rpartition(":")
    file = Path(place).with_suffix(".py").name
    fix = f"begin the cell that defines the job with %%writefile {file}, run it, and name {file}:{function}"
    return Misconfigured("is a notebook, and a job is loaded from a Python file", where=place, fix=fix)


def functions_in(place: str) -> dict[str, bool]:
    """Name -> whether its code names `Job`, of the functions that a file defines; none of what is no Python file."""
    try:
        tree = ast.parse(read_regular(Path(place)))
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return {}
    return {each.name: _names_job(each) for each in tree.body if isinstance(each, ast.FunctionDef)}


def _names_job(function: ast.FunctionDef) -> bool:
    nodes = [*ast.walk(function)]
    return any(isinstance(each, ast.Name) and each.id == "Job" for each in nodes) or any(
        isinstance(each, ast.Attribute) and each.attr == "Job" for each in nodes
    )
