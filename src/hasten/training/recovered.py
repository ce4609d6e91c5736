"""What is found in the folder of a run that goes on, and a new run that is given it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hasten.checkpoint.store import Checkpoint, Loaded, Store
from hasten.errors import StorageFailed
from hasten.training.configuration import changes, check_allowed, configuration_of
from hasten.training.keeping import Origin
from hasten.training.run import Run


@dataclass(frozen=True, slots=True)
class Recovered:
    """The newest checkpoint that is whole, read before anything is built; None where there is none.

    damaged: newer ones, that are not. told: a sentence for each.
    """

    loaded: Loaded | None
    damaged: tuple[Checkpoint, ...]
    told: tuple[str, ...]
    allowed: tuple[str, ...]

    @classmethod
    def of(cls, store: Store, allowed: Sequence[str]) -> Recovered:
        """Removes what a killed process left behind. Raises StorageFailed when the folder cannot be read."""
        store.clean()
        damaged, told = list[Checkpoint](), list[str]()

        def tell(checkpoint: Checkpoint, error: StorageFailed) -> None:
            damaged.append(checkpoint)
            told.append(f"{checkpoint.path} is damaged and not used: {error.what}")

        loaded = store.newest(tell)
        return cls(loaded, tuple(damaged), tuple(told), tuple(allowed))

    def given_to(self, run: Run) -> Origin:
        """Let the run go on from it. Raises Misconfigured for a configuration or a state that does not fit."""
        if self.loaded is None:
            return Origin(step=0, checkpoint=None, states=None, notices=self.told)
        states = self.loaded.states
        found = changes(states["configuration"], configuration_of(run))
        accepted = check_allowed(found, self.allowed)
        run.load_state_dict(states["run"])
        path = self.loaded.checkpoint.path
        return Origin(step=run.steps, checkpoint=path, states=states, notices=(*self.told, *accepted))
