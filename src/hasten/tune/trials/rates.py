"""Learning rate and momentum of the planned run under an arm's plan, as few enough points to draw."""

from __future__ import annotations

from typing import Any

from hasten.training.schedule.schedule_trace import trace_schedule
from hasten.tune.trials.trial import Trial

POINTS = 400


def rates(trial: Trial) -> dict[str, Any]:
    """The fields of facts.trials.Rates, of the first optimizer. For a run whose length is known."""
    run, setup = trial.run, trial.run.setup
    assert run.total_steps is not None
    trace = trace_schedule(
        trial.job,
        total_steps=run.total_steps,
        steps_per_epoch=run.loader.steps_per_epoch,
        optimizer=setup.optimizer,
        schedule=setup.schedule,
    )[0]
    chosen = sorted({round(point * (run.total_steps - 1) / (POINTS - 1)) for point in range(POINTS)})
    momenta = [trace.momenta[step] for step in chosen]
    return {
        "steps": [trace.steps[step] for step in chosen],
        "rates": [trace.rates[step] for step in chosen],
        "momenta": [] if None in momenta else momenta,
    }
