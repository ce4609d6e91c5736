"""From a job's name on the command line to the Job: `path/file.py:function` or `package.module:function`.

A file is loaded under its own name, not as __main__, with its folder first on the path: loader workers in other
processes find its functions again.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from hasten.errors import HastenError, Misconfigured, UserCodeFailed
from hasten.facts.formatting import did_you_mean
from hasten.facts.job import Job, describe, is_receiver
from hasten.regular_files import check_regular
from hasten.training.failures.user_code import user_code_failed
from hasten.training.setup.job_options import NONE_GIVEN, JobOptions, ended_while_loaded, keywords_for
from hasten.training.setup.no_job import A_JOB, no_job, notebook
from hasten.users_code import reason_of


def load_job(
    name: str, seed: int = 0, options: JobOptions = NONE_GIVEN, notify: Callable[[str], object] | None = None
) -> Job:
    """Import the user's module and call the function that makes the job.

    seed: of torch's, NumPy's and Python's global generators, before the file is loaded and before the function is
        called, so that a job that draws its data gets the same data in every process. Training begins with Job.seed.
    options: for the function, and for sys.argv, which is the job's from here on: the file, and what was given for it.
    notify: receives a notice for the user, where loading the file has trained.

    Raises Misconfigured when the name leads to no such function or the function gives no Job, and UserCodeFailed, with
    the place in the user's code, when importing or calling raises. Errors of hasten, such as JobError, pass unchanged.
    """
    job = load_returned(name, seed, options, notify)
    if not isinstance(job, Job):
        raise no_job(f"returned {describe(job)}, and no job", name)
    return job


def load_returned(
    name: str, seed: int = 0, options: JobOptions = NONE_GIVEN, notify: Callable[[str], object] | None = None
) -> object:
    """Import the user's module and call the function: whatever it returns. Arguments and errors: as of load_job."""
    place, function_name = split_name(name)
    from hasten.data.order.randomness import seed_everything  # it loads torch: see split_name
    from hasten.training.setup.process_options import make_first_calls

    make_first_calls()  # before the job's own file computes anything
    sys.argv[:] = [place, *options.arguments]
    seed_everything(seed)
    load = partial(_load_file, Path(place)) if _is_file(place) else partial(_load_module, place)
    with _training_noticed(place, notify):
        module = _guarded(load, name)
    seed_everything(seed)  # a module that was imported before has drawn nothing now
    function = _function(module, function_name, name)
    return _guarded(partial(function, **keywords_for(function, options.settings, name)), name)


def load_receiver(path: Path, name: str) -> Callable[..., Any]:
    """The function of this name in a file, which is loaded if it was not yet, as the job's own. Raises as load_job."""
    path, where = path.resolve(), f"{path}:{name}"
    module = sys.modules.get(path.stem)
    if module is None or getattr(module, "__file__", None) != str(path):
        module = _guarded(partial(_load_file, path), where)
    missing = partial(Misconfigured, where=where, fix=f"define it: def {name}(event)")
    function = _named(module, name, where, missing)
    if not is_receiver(function):
        raise Misconfigured(f"is {describe(function)}", where=where, fix="name a plain function of one event")
    return function


def split_receiver(name: str) -> tuple[str, str]:
    """As split_name, of a file alone."""
    if not name.rpartition(":")[0].endswith(".py"):
        what = "names no function of a file: a receiver is named by its file, not by its module"
        raise Misconfigured(what, where=name, fix="write file.py:function, such as send.py:to_wandb")
    return split_name(name)


def split_name(name: str) -> tuple[str, str]:
    """("digits.py", "job") of "digits.py:job". Raises Misconfigured, without loading anything, for a name without a
    function, of a folder, or of a file that is not there."""
    place, colon, function = name.rpartition(":")
    if name.endswith(".py"):
        _check_file(name)
        raise no_job("names a file, and no function in it", name)
    if place.endswith(".ipynb"):
        raise notebook(name)
    if not colon or not place or not function.isidentifier():
        if os.path.isfile(f"{name}.py"):
            raise Misconfigured("is no file", where=name, fix=f'did you mean "{name}.py"?')
        if os.path.isdir(name):
            fix = "write file:function or module:function; hasten tune also takes a script, such as train.py"
            raise Misconfigured("is a folder", where=name, fix=fix)
        fix = "write file:function or module:function, such as digits.py:job or package.digits:job"
        raise Misconfigured("does not name a function that returns a job", where=name, fix=fix)
    if _is_file(place):
        _check_file(place)
    return place, function


def _check_file(place: str) -> None:
    """Raises Misconfigured for one that is not there, or that is no regular file."""
    if not os.path.lexists(place):
        folder = Path(place).parent
        scripts = sorted(path.name for path in folder.glob("*.py")) if folder.is_dir() else []
        near = did_you_mean(Path(place).name, scripts) if scripts else "check the path"
        raise Misconfigured("there is no such file", where=place, fix=near)
    try:
        check_regular(place)
    except OSError as error:
        raise Misconfigured(f"cannot be read: {error.strerror}", where=place, fix="name a Python file") from error


def _is_file(place: str) -> bool:
    return place.endswith(".py") or "/" in place or os.sep in place


def _load_file(path: Path) -> ModuleType:
    path = path.resolve()
    _put_first_on_path(str(path.parent))
    # A loaded module of the same name is in use, and must not be replaced.
    taken = sys.modules.get(path.stem)
    is_same = taken is not None and getattr(taken, "__file__", None) == str(path)
    module_name = path.stem if taken is None or is_same else f"{path.stem}_of_{path.parent.name}"
    specification = importlib.util.spec_from_file_location(module_name, path)
    if specification is None or specification.loader is None:
        raise Misconfigured("is not a Python file", where=str(path), fix="name a file that ends in .py")
    module = importlib.util.module_from_spec(specification)
    sys.modules[module_name] = module
    try:
        specification.loader.exec_module(module)
    except BaseException:
        del sys.modules[module_name]
        raise
    return module


def _load_module(dotted: str) -> ModuleType:
    _put_first_on_path(os.getcwd())
    try:
        return importlib.import_module(dotted)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{dotted}.".startswith(f"{error.name}."):
            raise  # the module is there; something that it imports is not
        fix = f"for a file, write {dotted.replace('.', '/')}.py; for a module, install it or change to its folder"
        raise Misconfigured(f'there is no module "{error.name}"', where=dotted, fix=fix) from None


@contextmanager
def _training_noticed(place: str, notify: Callable[[str], object] | None) -> Iterator[None]:
    """A notice where optimizers take steps meanwhile: the file is a script that trains itself whenever it is loaded."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    steps, began = 0, time.monotonic()

    def count(*_: object) -> None:
        nonlocal steps
        steps += 1

    hook = register_optimizer_step_post_hook(count)
    try:
        yield
    finally:
        hook.remove()
    if steps and notify is not None:
        what = f"loading {place} took {time.monotonic() - began:.1f} s and trained (optimizer steps: {steps:,})"
        notify(f'{what}, as each process that loads it does: put what trains under `if __name__ == "__main__":`')


def _put_first_on_path(folder: str) -> None:
    if sys.path[:1] != [folder]:
        sys.path.insert(0, folder)


def _named(module: ModuleType, name: str, where: str, missing: Callable[[str], Misconfigured]) -> Any:
    """missing: the error, by what is wrong, where no function has a name like this one."""
    function = getattr(module, name, None)
    if function is None:
        own = [key for key, value in vars(module).items() if inspect.isfunction(value) and not key.startswith("_")]
        what = f'there is no function "{name}"'
        if near := get_close_matches(name, own, n=1, cutoff=0.75):
            raise Misconfigured(what, where=where, fix=f'did you mean "{near[0]}"?')
        raise missing(what)
    return function


def _function(module: ModuleType, name: str, where: str) -> Any:
    function = _named(module, name, where, partial(no_job, name=where))
    if not callable(function):
        fix = f"make it a function without arguments that returns the job: def {name}() -> hasten.Job"
        raise Misconfigured(f"is {describe(function)}, not a function", where=where, fix=fix)
    try:
        inspect.signature(function).bind()
    except TypeError:
        what = f"needs arguments: {name}{inspect.signature(function)}"
        fix = f"a job is called without arguments, and returns {A_JOB}: give them defaults, or name another function"
        raise Misconfigured(what, where=where, fix=fix) from None
    return function


def _guarded(call: Callable[[], Any], name: str) -> Any:
    """Call what runs the user's code, and say where in it an exception came from."""
    try:
        return call()
    except HastenError:
        raise
    except (Exception, SystemExit) as error:
        # Nothing but the user's code ran, so it is the cause even where no line of it is in the traceback.
        failure = ended_while_loaded(error, name) or user_code_failed(error)
        raise failure or UserCodeFailed(reason_of(error), where=name, fix="fix the job") from error
