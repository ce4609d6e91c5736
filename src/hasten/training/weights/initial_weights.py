"""A run that begins with the weights of a file.

They are loaded into the job's own module before a plan changes it. A run that was killed before its first checkpoint
begins again with the same weights, which its folder records before the model is built:

    initial_weights.json      {"path": …, "bytes": …, "sha256": …}
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Self

from torch import nn

from hasten.checkpoint.digests import digest_of, read_digested
from hasten.checkpoint.files import names_in, remove_file, write_atomically
from hasten.checkpoint.locks import run_lock
from hasten.errors import Misconfigured, StorageFailed
from hasten.facts.formatting import byte_size, printable, shortened
from hasten.facts.job import Job
from hasten.facts.record_reading import read_record
from hasten.training.failures.user_code import user_code_failed
from hasten.training.run_folder.folder_names import BEGAN_WITH
from hasten.training.setup.prepared_job import check_made
from hasten.training.weights.weights_file import check_file, weights_in, without_prefixes

_LARGEST_BYTES = 1 << 16
_FIT = "give the weights of this model, or load the ones that fit in Job.model: hasten.read_weights(…)"


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
        if {*names_in(folder)} <= {BEGAN_WITH, run_lock.NAME}:
            remove_file(folder / BEGAN_WITH)
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
        if not (folder / BEGAN_WITH).exists():
            return None
        content, _ = read_digested(folder / BEGAN_WITH, _LARGEST_BYTES)
        try:
            found = read_record(_Recorded, json.loads(content))
        except (ValueError, RecursionError) as error:
            what = f"does not say which weights the run started from: {printable(str(error))}"
            fix = "start a new run in another folder"
            raise StorageFailed(what, where=str(folder / BEGAN_WITH), fix=fix) from error
        path = Path(found.path)
        if not path.is_file() or digest_of(path).sha256 != found.sha256:
            what = "the weights that this run started from are missing or have changed, and the run has no checkpoint"
            raise Misconfigured(what, where=printable(str(path)), fix="pass them again with --weights")
        return cls(path)

    def record(self, folder: Path) -> None:
        """Raises StorageFailed."""
        text = json.dumps({"path": str(self.path), **asdict(digest_of(self.path))}, indent=1) + "\n"
        write_atomically(folder / BEGAN_WITH, text.encode())

    def within(self, job: Job) -> Job:
        """The job, with a model that has these weights from its beginning."""
        return replace(job, model=lambda: self._put_into(check_made(job.model())))

    def _put_into(self, model: nn.Module) -> nn.Module:
        self.notices = [f"started from the weights of {printable(str(self.path))}: {put(self.path, model)}"]
        return model


def put(path: Path, model: nn.Module) -> str:
    """Load the weights of a file into the module, each by its name; what they were, in words.

    A tensor that the module has under several names may be given under one of them. Raises Misconfigured, with torch's
    words, for missing or unknown names and for other shapes; and as read_weights does.
    """
    given = weights_in(path)
    own: dict[str, object] = model.state_dict(keep_vars=True)
    if not given.keys() <= own.keys():
        given = without_prefixes(given)
    under_other_names = {id(own[name]): tensor for name, tensor in given.items() if name in own}
    tied = {name: under_other_names[id(each)] for name, each in own.items() if id(each) in under_other_names}
    try:
        model.load_state_dict(tied | given)
    except RuntimeError as error:
        if user_code_failed(error) is not None:
            raise
        what = f"these are not the weights of this model: {shortened(printable(str(error)), 400)}"
        raise Misconfigured(what, where=printable(str(path)), fix=_FIT) from error
    return f"{len(given):,} tensors, {byte_size(sum(each.nbytes for each in given.values()))}"
