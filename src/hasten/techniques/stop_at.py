"""End training once an evaluation has reached a value.

What it does: the run ends with the first evaluation whose result is at least as good as the value in `at_most` or
`at_least`. The weights of that evaluation are the result of the run. The value of the choice names the metric: "loss"
or a metric of the job. The job's own early stopping and the planned end still apply.

Options: `at_most` (where lower is better) or `at_least` (where higher is better), a number. One of them is required.

Why it is faster: a planned run is usually long enough to be safe. Where it reaches the goal sooner, the remaining steps
are unnecessary. The speed of a step does not change.

When it loses: where the value is never reached, it does nothing. The first evaluation that reaches it can be lucky,
more likely with frequent evaluations and few samples. A schedule that would have ended low is stopped early.

What it changes: training ("changes training"). The model does not learn what the remaining steps would have added.

Limits: the job needs valid data. `hasten tune` does not try this technique by itself. With `--allow training` it writes
`stop_at` into the plan, with the result that the job itself reached.

Example:

    [[choice]]
    technique = "stop_at"
    value = "loss"
    options = { at_most = 0.25 }
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hasten.errors import PlanError
from hasten.facts.choice import Choice
from hasten.facts.formatting import did_you_mean
from hasten.facts.job import Job
from hasten.facts.techniques.stage import Stage
from hasten.facts.techniques.symptom import Symptom
from hasten.techniques.common.plan_values import is_number, refused
from hasten.techniques.contract import No, Technique, Yes
from hasten.techniques.setup import Setup, Target

NO_VALID = "the job has no valid data, so it has no evaluations"
OPTIONS = {"at_most": False, "at_least": True}  # -> whether higher is better


def applies(setup: Setup) -> Yes | No:
    return No(NO_VALID) if setup.job.valid is None else Yes()


def candidates(setup: Setup) -> Sequence[Choice]:
    return []


def apply(setup: Setup, choice: Choice) -> None:
    setup.evaluation.target = target_of(choice, setup.job)


def target_of(choice: Choice, job: Job) -> Target:
    """The result that a choice requests. Raises PlanError for one that no evaluation of the job can reach."""
    if job.valid is None:
        raise _wrong(NO_VALID, "write Job.valid, or remove the choice")
    metric, known = choice.value, ["loss", *job.metrics]
    if not isinstance(metric, str) or metric not in known:
        raise _wrong(f"{metric!r} is not a result of an evaluation", did_you_mean(str(metric), known))
    option, value = next(iter(choice.options.items()), ("", None))
    if len(choice.options) != 1 or option not in OPTIONS or not is_number(value) or not math.isfinite(value):
        raise refused(choice, "write one of at_most = … and at_least = …, a finite number, and no other option")
    rises, higher = OPTIONS[option], _higher_is_better(metric, job)
    if higher is not None and rises is not higher:
        better, right = ("higher", "at_least") if higher else ("lower", "at_most")
        raise _wrong(f"{metric} has {option}, and is better when it is {better}", f"write {right} = {value}")
    return Target(metric=metric, value=float(value), higher_is_better=rises)


def _higher_is_better(metric: str, job: Job) -> bool | None:
    """What the job says, or the metric; None where neither says it."""
    for rule in filter(None, (job.keeps, job.stop)):
        if rule.metric == metric and rule.mode is not None:
            return rule.mode == "max"
    return False if metric == "loss" else getattr(job.metrics[metric], "higher_is_better", None)


def _wrong(what: str, fix: str) -> PlanError:
    return PlanError(what, where="stop_at", fix=fix)


TECHNIQUE = Technique(
    name="stop_at",
    stage=Stage.EVALUATION,
    treats=Symptom.SLOW_CONVERGENCE,
    values='"loss" or the name of a metric of the job; options: at_most or at_least (a number)',
    costs=("the remaining steps are not trained",),
    source="https://arxiv.org/abs/1910.01500",
    applies=applies,
    candidates=candidates,
    apply=apply,
)
