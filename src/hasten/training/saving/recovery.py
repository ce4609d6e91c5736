"""The newest whole checkpoint in the folder of a run that resumes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hasten.checkpoint.store import Checkpoint, Loaded, Store
from hasten.errors import Damaged, StorageFailed
from hasten.training.failures.user_code import user_code_failed
from hasten.training.run import Run
from hasten.training.saving.checkpointing import Origin
from hasten.training.setup.configuration import changes, check_allowed


@dataclass(frozen=True, slots=True)
class Recovered:
    """The newest checkpoint that is whole, read before anything is built.

    loaded: None where there is no checkpoint.
    damaged: those that are newer, and were found damaged. notices: a sentence for each.
    allowed: requested changes of the configuration.
    """

    loaded: Loaded | None
    damaged: tuple[Checkpoint, ...]
    notices: tuple[str, ...]
    allowed: tuple[str, ...]

    @classmethod
    def of(cls, store: Store, allowed: Sequence[str]) -> Recovered:
        """Removes what a killed process left behind.

        Raises StorageFailed when the folder, or a checkpoint, cannot be read; and when there are checkpoints, and none
        is whole: a run that began again would remove what may still be of use.
        """
        store.clean()
        damaged, notices = list[Checkpoint](), list[str]()

        def on_damage(checkpoint: Checkpoint, error: Damaged) -> None:
            damaged.append(checkpoint)
            notices.append(f"{checkpoint.path} is damaged and not used: {error.what}")

        loaded = store.newest(on_damage)
        if loaded is None and damaged:
            others = f"; so are {len(notices) - 1} older ones" if len(notices) > 1 else ""
            what = f"every checkpoint is damaged: {notices[0]}{others}"
            fix = "restore one from a copy; or start a new run in another folder, or move this one away"
            raise Damaged(what, where=str(store.folder), fix=fix)
        return cls(loaded, tuple(damaged), tuple(notices), tuple(allowed))

    @classmethod
    def named(cls, store: Store, name: str | None, allowed: Sequence[str]) -> Recovered:
        """The checkpoint of this name, which the leading rank has found, read by another one; None where it found none.

        Raises StorageFailed where this rank cannot read it.
        """
        found = [each for each in store.found() if each.path.name == name]
        if name is not None and not found:
            what = f"{name} is missing here, but the first rank has it"
            fix = "put the run folder on storage that all machines share, under this path"
            raise StorageFailed(what, where=str(store.folder), fix=fix)
        return cls(found[0].read() if found else None, (), (), tuple(allowed))

    @property
    def name(self) -> str | None:
        """Of the checkpoint."""
        return self.loaded.checkpoint.path.name if self.loaded is not None else None

    def given_to(self, run: Run, configuration: Mapping[str, Any]) -> Origin:
        """Load the checkpoint into the run. configuration: of the run, as it was built.

        Raises Misconfigured for a configuration or a state that does not fit.
        """
        if self.loaded is None:
            return Origin(step=0, checkpoint=None, states=None, notices=self.notices)
        states, path = self.loaded.states, self.loaded.checkpoint.path
        with of_known_form(path):
            accepted = check_allowed(changes(states["configuration"], configuration), self.allowed)
            run.load_state_dict(states["run"])
            self.loaded.close()
            origin = Origin(step=run.steps, checkpoint=path, states=states, notices=(*self.notices, *accepted))
            if type(origin.log_bytes) is not int or origin.log_bytes < 0:
                raise ValueError("no log can be so long")
        return origin


@contextmanager
def of_known_form(path: Path | None) -> Iterator[None]:
    """What is read in this block is untrusted: a checkpoint can be whole and sealed, and hold anything. Raises
    StorageFailed in place of the error that an unknown form causes."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, RuntimeError) as error:
        if user_code_failed(error) is not None:  # an optimizer or a module of their own
            raise
        what = f"holds a state that does not fit this job: {type(error).__name__}: {error}"
        fix = "remove it to resume from the checkpoint before it, or from the beginning"
        raise StorageFailed(what, where=str(path), fix=fix) from error
