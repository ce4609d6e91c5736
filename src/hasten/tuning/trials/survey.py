"""What every technique says of a built job: what it would try, or why it cannot help here; and the planned run's
length."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from hasten.facts.choice import Choice, Preserves
from hasten.facts.formatting import printable
from hasten.techniques import ALL, No
from hasten.tuning.trials.search_key import digest_of_sources
from hasten.tuning.trials.trial import Trial


def survey(trial: Trial) -> dict[str, Any]:
    """proposed: choices as tables; refused: technique -> why not; treats: technique -> the name of its symptom; and
    what the planned run is.

    total_steps, total_epochs: None where the data does not say; evaluations: of the whole run; stops_early: whether
    early stopping can end it before; recipe_steps, gradient_steps, gradient_processes, accepted_steps: see PlanProfile,
    none of a job; fingerprint, machine: what a plan that is proven here says of them; sources: digest of the code that
    runs.
    """
    run = trial.run
    proposed, refused = list[dict[str, Any]](), dict[str, str]()
    for technique in ALL:
        answer = technique.applies(run.setup)
        if isinstance(answer, No):
            refused[technique.name] = printable(answer.reason)
        else:
            proposed += [as_table(choice) for choice in technique.candidates(run.setup)]
    return {
        "proposed": proposed,
        "refused": refused,
        "treats": {technique.name: technique.treats.name for technique in ALL},
        "seed": trial.job.seed,
        "total_steps": run.total_steps,
        "total_epochs": run.total_epochs,
        "ends_with_turn": False,
        "interrupted": False,
        "recipe_steps": 0,
        "gradient_steps": 0,
        "gradient_processes": 0,
        "accepted_steps": 0,
        "evaluations": _evaluations(trial),
        "stops_early": trial.stop is not None,
        "device": str(run.device),
        "machine": run.setup.machine.summary,
        "fingerprint": asdict(run.built.fingerprint),
        "proven_on": asdict(run.built.proven_on),
        "sources": digest_of_sources(),
    }


def _evaluations(trial: Trial) -> int:
    """How often the planned run evaluates, its last evaluation included."""
    run, job = trial.run, trial.job
    if job.valid is None:
        return 0
    if job.evaluate_every is not None and run.total_steps is not None:
        return -(-run.total_steps // job.evaluate_every)
    return run.total_epochs or 1


def as_table(choice: Choice) -> dict[str, Any]:
    return asdict(choice) | {"preserves": None if choice.preserves is None else choice.preserves.value}


def choice_of(table: dict[str, Any]) -> Choice:
    fields: dict[str, Any] = table | {
        "preserves": None if table["preserves"] is None else Preserves(table["preserves"])
    }
    return Choice(**fields)
