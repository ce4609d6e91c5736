"""A run that begins with weights that are there already.

They go into the job's own module as soon as it is made, before a plan changes it: so they are named as the job names
them, whatever the plan. A run that goes on from a checkpoint never looks at them again. One that was killed before its
first checkpoint begins anew, and then with the same weights: its folder says which they are, from before the model is
made.

    initial_weights.json      {"path": …, "bytes": …, "sha256": …}
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Self

import torch
from torch import Tensor, nn

from hasten.checkpoint.digests import Digest, digest_of, read_digested
from hasten.checkpoint.files import names_in, remove_file, write_atomically
from hasten.checkpoint.locks import run_lock
from hasten.errors import Misconfigured, StorageFailed
from hasten.facts.formatting import byte_size, printable
from hasten.facts.job import Job
from hasten.training.failures.user_code import user_code_failed
from hasten.training.setup.made_model import check_made
from hasten.training.weights.weights_file import check_file, some, weights_in, without_prefixes

NAME = "initial_weights.json"
_LARGEST_BYTES = 1 << 16
_FIT = "give the file of this very model, or load what fits yourself in Job.model: hasten.read_weights(…)"


@contextmanager
def begun_with(path: str | Path | None, folder: Path | None) -> Iterator[InitialWeights | None]:
    """What a run begins with: the weights in this file, or, where none is named, those that its folder says; else None.

    The folder says from now on which they are; where the run never comes so far that anything else is in it, no more.
    Raises Misconfigured for what can be no file of weights, and for a file that the folder names and that has changed;
    StorageFailed where one cannot be read, or the folder cannot be written to.
    """
    if folder is None:
        yield InitialWeights(Path(path)) if path is not None else None
        return
    if path is None:
        yield InitialWeights.remembered(folder)
        return
    given = InitialWeights(Path(path))
    given.remember(folder)
    try:
        yield given
    except BaseException:
        if {*names_in(folder)} <= {NAME, run_lock.NAME}:
            remove_file(folder / NAME)
        raise


class InitialWeights:
    """notices: what is to be known of them, once a model was made."""

    def __init__(self, path: Path) -> None:
        """Raises Misconfigured for what can be no file of weights, StorageFailed for one that cannot be looked at."""
        check_file(path)
        self.path, self.notices = path.absolute(), list[str]()

    @classmethod
    def remembered(cls, folder: Path) -> Self | None:
        """Those that the run in this folder was begun with; None for one that was begun without.

        Raises Misconfigured when they are not what they were, StorageFailed when it cannot be read which they were.
        """
        if not (folder / NAME).is_file():
            return None
        content, _ = read_digested(folder / NAME, _LARGEST_BYTES)
        try:
            match json.loads(content):
                case {"path": str(path), "bytes": int(size), "sha256": str(sha256)}:
                    written = Digest(size, sha256)
                case _:
                    raise ValueError("it names no file")
        except (ValueError, RecursionError) as error:
            what = f"does not say what the run began with: {printable(str(error))}"
            raise StorageFailed(what, where=str(folder / NAME), fix="begin the run anew, in another folder") from error
        if not Path(path).is_file():
            raise _lost(path, "is gone, with which this run was begun")
        if Path(path).stat().st_size != written.bytes or digest_of(Path(path)) != written:
            raise _lost(path, "are not those any more that this run was begun with")
        return cls(Path(path))

    def remember(self, folder: Path) -> None:
        """Raises StorageFailed."""
        text = json.dumps({"path": str(self.path), **asdict(digest_of(self.path))}, indent=1) + "\n"
        write_atomically(folder / NAME, text.encode())

    def within(self, job: Job) -> Job:
        """The job with a model that has these weights from its beginning."""
        return replace(job, model=lambda: self._put_into(check_made(job.model())))

    def _put_into(self, model: nn.Module) -> nn.Module:
        self.notices = [f"begun with the weights of {printable(str(self.path))}: {put(self.path, model)}"]
        return model


def _lost(path: str, how: str) -> Misconfigured:
    what, fix = f"{how}, and it has no checkpoint", "give them again, with --weights"
    return Misconfigured(what, where=printable(path), fix=fix)


def put(path: Path, model: nn.Module) -> str:
    """Let the module have the weights of a file, each under its own name; what they were, in words.

    Raises Misconfigured, naming the first few, for names that are missing or unknown, for other shapes, for numbers
    that the module's type cannot hold, and for two tensors where the module has one; and what read_weights does.
    """
    found = weights_in(path)
    kept: dict[str, object] = model.state_dict(keep_vars=True)
    own = {name: each for name, each in kept.items() if isinstance(each, Tensor)}
    others = kept.keys() - own.keys()  # what else modules keep, by get_extra_state(), is in no file of weights
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
        _refuse_loss(given, own, path)
        missing, unknown = _loaded(given, model, path)  # a module may know older names of its own
    kinds = {"missing": _but_tied(missing - others, own), "unknown to the model": unknown, "of another form": unlike}
    told = [
        f"{len(names):,} {'is' if len(names) == 1 else 'are'} {kind}: {some(names)}"
        for kind, names in kinds.items()
        if names
    ]
    if told:
        what = f"these are not the weights of this model; of their names {'; '.join(told)}"
        raise Misconfigured(what, where=printable(str(path)), fix=_FIT)
    left = [f"{some(others)} as the model made it"] if others else []
    return ", ".join([*_in_words(given, own, found.under, prefixes), *left])


def _refuse_loss(given: Mapping[str, Tensor], own: Mapping[str, Tensor], path: Path) -> None:
    """Raises Misconfigured where something of what is given would be lost without a word."""
    both = sorted(given.keys() & own.keys())
    infinite = [
        f"{name} ({given[name].dtype} as {own[name].dtype})".replace("torch.", "")
        for name in both
        if _becomes_infinite(given[name], own[name].dtype)
    ]
    if infinite:
        what = f"has numbers that would be infinite in the model: {some(infinite)}"
        raise Misconfigured(what, where=printable(str(path)), fix="make the model of a wider type")
    named = dict[int, str]()  # the first of the names that each tensor of the model has
    unequal = [
        f"{first} and {name}"
        for name in both
        if (first := named.setdefault(id(own[name]), name)) != name
        and not _same_bits(given[first].to(own[name].dtype), given[name].to(own[name].dtype))
    ]
    if unequal:
        what = f"these names have one tensor in the model, and in the file different ones: {some(unequal)}"
        raise Misconfigured(what, where=printable(str(path)), fix="give only one of them, or the same for all")


def _becomes_infinite(given: Tensor, dtype: torch.dtype) -> bool:
    """Whether a finite number is none in this type."""
    if given.dtype == dtype or not (dtype.is_floating_point or dtype.is_complex):
        return False
    return bool((_finite(given) & ~_finite(given.to(dtype))).any())


def _finite(tensor: Tensor) -> Tensor:
    """Where each number is finite; torch does not know it of every type of 8 bits."""
    return torch.isfinite(tensor.float() if tensor.dtype.itemsize == 1 else tensor)


def _same_bits(one: Tensor, other: Tensor) -> bool:
    """Of the same type and shape, and equal even where they are no numbers."""
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
    """Those that are missing indeed: a tensor that the model knows by several names needs to be given by one."""
    there = {id(each) for name, each in own.items() if name not in names}
    return {name for name in names if name not in own or id(own[name]) not in there}


def _form(tensor: Tensor) -> str:
    return f"{'×'.join(map(str, tensor.shape)) or 'a number'} of {str(tensor.dtype).removeprefix('torch.')}"


def _in_words(
    given: Mapping[str, Tensor], own: Mapping[str, Tensor], under: tuple[str, ...], prefixes: tuple[str, ...]
) -> list[str]:
    told = [f"{len(given):,} tensors, {byte_size(sum(each.nbytes for each in given.values()))}"]
    if under:
        told.append(f"found under {'/'.join(under)}")
    if prefixes:
        told.append(f"without {' and '.join(prefixes)} before their names")
    types = {(given[name].dtype, own[name].dtype) for name in given.keys() & own.keys()}
    told += [f"{a} taken as {b}".replace("torch.", "") for a, b in sorted(types, key=str) if a != b]
    return told
