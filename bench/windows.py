"""Windows of a run's own steps, for arms that train as `hasten train` does."""

from __future__ import annotations

from collections.abc import Callable

from hasten.training.run import Run


def windows_of(run: Run) -> Callable[[int], None]:
    """window(steps) takes so many optimizer steps, with their data."""
    batches = run.batches()

    def window(steps: int) -> None:
        until = run.steps + steps
        while run.steps < until:  # accumulated gradients and left-out batches take several for one
            run.step(next(batches))

    return window
