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

from hasten.checkpoint import run_lock
from hasten.checkpoint.digests import Digest, digest_of, read_digested
from hasten.checkpoint.files import names_in, remove_file, write_atomically
from hasten.errors import Misconfigured, StorageFailed
from hasten.facts.job import Job
from hasten.facts.sizes import byte_size
from hasten.facts.texts import printable
from hasten.training.user_code import user_code_failed
from hasten.training.weights_file import check_file, some, weights_in, without_prefixes

NAME = "initial_weights.json"
_LARGEST_BYTES = 1 << 16
_FIT = "give the file of this very model, or load what fits yourself in Job.model: hasten.read_weights(…)"


@contextmanager
def begun_with(path: str | Path | None, folder: Path | None) -> Iterator[GivenWeights | None]:
    """What a run begins with: the weights in this file, or, where none is named, those that its folder says; else None.

    The folder says from now on which they are; where the run never comes so far that anything else is in it, no more.
    Raises as GivenWeights does, and as remembered.
    """
    if path is None or folder is None:
        named = GivenWeights(Path(path)) if path is not None else None
        yield named if folder is None else GivenWeights.remembered(folder)
        return
    given = GivenWeights(Path(path))
    given.remember(folder)
    try:
        yield given
    except BaseException:
        if {*names_in(folder)} <= {NAME, run_lock.NAME}:
            remove_file(folder / NAME)
        raise


class GivenWeights:
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
                    given, written = cls(Path(path)), Digest(size, sha256)
                case _:
                    raise ValueError("it names no file")
        except (ValueError, RecursionError) as error:
            what = f"does not say what the run began with: {printable(str(error))}"
            raise StorageFailed(what, where=str(folder / NAME), fix="begin the run anew, in another folder") from error
        if given.path.stat().st_size != written.bytes or digest_of(given.path) != written:
            what = "are not those any more that this run was begun with, and it has no checkpoint"
            fix = "give them again, with --weights"
            raise Misconfigured(what, where=printable(path), fix=fix)
        return given

    def remember(self, folder: Path) -> None:
        """Raises StorageFailed."""
        text = json.dumps({"path": str(self.path), **asdict(digest_of(self.path))}, indent=1) + "\n"
        write_atomically(folder / NAME, text.encode())

    def within(self, job: Job) -> Job:
        """The job with a model that has these weights from its beginning."""
        return replace(job, model=lambda: self._put_into(job.model()))

    def _put_into(self, model: nn.Module) -> nn.Module:
        if isinstance(model, nn.Module):  # what is none is told by who asked for one
            self.notices = [f"begun with the weights of {printable(str(self.path))}: {put(self.path, model)}"]
        return model


def put(path: Path, model: nn.Module) -> str:
    """Let the module have the weights of a file, each under its own name; what they were, in words.

    Raises Misconfigured, naming the first few, for names that are missing or unknown and for other shapes, and what
    read_weights does.
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
    if not unlike:  # a module may know older names of its own
        missing, unknown = _loaded(given, model, path)
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
