"""A run that begins with the weights of a file.

They are loaded into the job's own module as soon as it is built, before a plan changes it: so their names are those of
the job, whatever the plan. A run that resumes from a checkpoint never reads them again. A run that was killed before
its first checkpoint begins again with the same weights: its folder records them before the model is built.

    initial_weights.json      {"path": …, "bytes": …, "sha256": …}
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Self

import torch
from torch import Tensor, nn

from hasten.checkpoint.digests import digest_of, read_digested
from hasten.checkpoint.files import names_in, remove_file, write_atomically
from hasten.checkpoint.locks import run_lock
from hasten.errors import Misconfigured, StorageFailed
from hasten.facts.formatting import byte_size, printable
from hasten.facts.job import Job
from hasten.facts.record_reading import read_record
from hasten.training.failures.user_code import user_code_failed
from hasten.training.setup.prepared_job import check_made
from hasten.training.weights.weights_file import check_file, some, weights_in, without_prefixes

NAME = "initial_weights.json"
_LARGEST_BYTES = 1 << 16
_FIT = "give the file of this very model, or load what fits yourself in Job.model: hasten.read_weights(…)"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Recorded:
    path: str
    bytes: int
    sha256: str


@contextmanager
def begun_with(path: str | Path | None, folder: Path | None) -> Iterator[InitialWeights | None]:
    """The weights of this file; without one, those that the run's folder records; else None.

    The folder records them, unless the run ends before anything else is in it.
    Raises Misconfigured for what can be no file of weights, and for a recorded file that has changed; StorageFailed
    where one cannot be read, or the folder cannot be written to.
    """
    if folder is None:
        yield InitialWeights(Path(path)) if path is not None else None
        return
    if path is None:
        yield InitialWeights.recorded(folder)
        return
    given = InitialWeights(Path(path))
    given.record(folder)
    try:
        yield given
    except BaseException:
        if {*names_in(folder)} <= {NAME, run_lock.NAME}:
            remove_file(folder / NAME)
        raise


class InitialWeights:
    """notices: about the weights, once a model was built."""

    def __init__(self, path: Path) -> None:
        """Raises Misconfigured for what can be no file of weights, StorageFailed for one that cannot be read."""
        check_file(path)
        self.path, self.notices = path.absolute(), list[str]()

    @classmethod
    def recorded(cls, folder: Path) -> Self | None:
        """Those that the run in this folder was begun with; None for a run that was begun without.

        Raises Misconfigured when the file has changed, StorageFailed when the record cannot be read.
        """
        if not (folder / NAME).is_file():
            return None
        content, _ = read_digested(folder / NAME, _LARGEST_BYTES)
        try:
            found = read_record(_Recorded, json.loads(content))
        except (ValueError, RecursionError) as error:
            what = f"does not say what the run began with: {printable(str(error))}"
            raise StorageFailed(what, where=str(folder / NAME), fix="begin a new run, in another folder") from error
        path = Path(found.path)
        if not path.is_file():
            raise _lost(path, "the weights that this run was begun with are gone")
        if path.stat().st_size != found.bytes or digest_of(path).sha256 != found.sha256:
            raise _lost(path, "the weights were changed since this run was begun")
        return cls(path)

    def record(self, folder: Path) -> None:
        """Raises StorageFailed."""
        text = json.dumps({"path": str(self.path), **asdict(digest_of(self.path))}, indent=1) + "\n"
        write_atomically(folder / NAME, text.encode())

    def within(self, job: Job) -> Job:
        """The job, with a model that has these weights from its beginning."""
        return replace(job, model=lambda: self._put_into(check_made(job.model())))

    def _put_into(self, model: nn.Module) -> nn.Module:
        self.notices = [f"begun with the weights of {printable(str(self.path))}: {put(self.path, model)}"]
        return model


def _lost(path: Path, how: str) -> Misconfigured:
    what, fix = f"{how}, and it has no checkpoint", "give them again, with --weights"
    return Misconfigured(what, where=printable(str(path)), fix=fix)


def put(path: Path, model: nn.Module) -> str:
    """Load the weights of a file into the module, each by its name; what they were, in words.

    Raises Misconfigured, with the first few names, for names that are missing or unknown, for other shapes, for dtypes
    that torch cannot convert, and for different tensors where the module has a single one; and as read_weights does.
    """
    found = weights_in(path)
    state: dict[str, object] = model.state_dict(keep_vars=True)
    own = {name: each for name, each in state.items() if isinstance(each, Tensor)}
    others = state.keys() - own.keys()  # what get_extra_state() adds, which no file of weights has
    given, prefixes = dict(found.tensors), tuple[str, ...]()
    if not given.keys() <= own.keys():
        given, prefixes = without_prefixes(given)
    unlike = {
        f"{name} ({_form(given[name])} there, {_form(own[name])} in the model)"
        for name in given.keys() & own.keys()
        if given[name].shape != own[name].shape or not torch.can_cast(given[name].dtype, own[name].dtype)
    }
    missing, unknown = own.keys() - given.keys(), given.keys() - own.keys()
    if not unlike:
        _refuse_untied(given, own, path)
        missing, unknown = _loaded(given, model, path)  # a module may accept older names of its own
    kinds = {"missing": _but_tied(missing - others, own), "unknown to the model": unknown, "of another form": unlike}
    wrong = [
        f"{len(names):,} {'is' if len(names) == 1 else 'are'} {kind}: {some(names)}"
        for kind, names in kinds.items()
        if names
    ]
    if wrong:
        what = f"these are not the weights of this model; of their names {'; '.join(wrong)}"
        raise Misconfigured(what, where=printable(str(path)), fix=_FIT)
    rest = [f"{some(others)} as the model made it"] if others else []
    return ", ".join([*_in_words(given, own, found.under, prefixes), *rest])


def _refuse_untied(given: Mapping[str, Tensor], own: Mapping[str, Tensor], path: Path) -> None:
    """Raises Misconfigured for different tensors under names that are one tensor in the model: torch loads the last."""
    named = dict[int, str]()  # the first name of each tensor of the model
    unequal = [
        f"{first} and {name}"
        for name in sorted(given.keys() & own.keys())
        if (first := named.setdefault(id(own[name]), name)) != name
        and not _same_bits(given[first].to(own[name].dtype), given[name].to(own[name].dtype))
    ]
    if unequal:
        what = f"these names have one tensor in the model, and in the file different ones: {some(unequal)}"
        raise Misconfigured(what, where=printable(str(path)), fix="give only one of them, or the same for all")


def _same_bits(one: Tensor, other: Tensor) -> bool:
    """Of the same dtype and shape; NaNs are compared by their bits."""
    first, second = (each.contiguous().reshape(-1).view(torch.uint8) for each in (one, other))
    return torch.equal(first, second)


def _loaded(given: Mapping[str, Tensor], model: nn.Module, path: Path) -> tuple[set[str], set[str]]:
    """The names that were missing, and those that the model does not know."""
    try:
        report = model.load_state_dict(given, strict=False)
    except RuntimeError as error:
        if user_code_failed(error) is not None:
            raise
        what = f"cannot be loaded: {printable(str(error))}"
        raise Misconfigured(what, where=printable(str(path)), fix=_FIT) from error
    return set(report.missing_keys), set(report.unexpected_keys)


def _but_tied(names: set[str], own: Mapping[str, Tensor]) -> set[str]:
    """Without names of a tensor that is given under another name."""
    there = {id(each) for name, each in own.items() if name not in names}
    return {name for name in names if name not in own or id(own[name]) not in there}


def _form(tensor: Tensor) -> str:
    return f"{'×'.join(map(str, tensor.shape)) or 'a number'} of {str(tensor.dtype).removeprefix('torch.')}"


def _in_words(
    given: Mapping[str, Tensor], own: Mapping[str, Tensor], under: tuple[str, ...], prefixes: tuple[str, ...]
) -> list[str]:
    words = [f"{len(given):,} tensors, {byte_size(sum(each.nbytes for each in given.values()))}"]
    if under:
        words.append(f"found under {'/'.join(under)}")
    if prefixes:
        words.append(f"without {' and '.join(prefixes)} before their names")
    types = {(given[name].dtype, own[name].dtype) for name in given.keys() & own.keys()}
    words += [f"{a} converted to {b}".replace("torch.", "") for a, b in sorted(types, key=str) if a != b]
    return words
