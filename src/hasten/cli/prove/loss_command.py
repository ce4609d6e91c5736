"""`hasten prove loss`: whether the loss of a plan is equivalent to that of the baseline.

The exit code is for scripts; errors.py lists all of them. Only equivalence is a success: a plan that is better does no
harm, but it changes training, as a lost regulariser would. An interrupted proof has the code of the interruption, and
one whose arm failed for another reason than its loss has the code of that failure.
"""

from __future__ import annotations

import math
import shlex
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hasten.cli.application import (
    AsJson,
    JobName,
    Quiet,
    SetOption,
    command,
    ends_with_exit_code,
    exit_code_of,
    job_options,
    prove,
    read,
)
from hasten.errors import HARMED, NOT_PROVEN
from hasten.report.display import UNKNOWN, decimal, table
from hasten.report.sentence import Sentence
from hasten.report.terminal.command_output import CommandOutput

if TYPE_CHECKING:
    from hasten.training.setup.job_options import JobOptions
    from hasten.tuning.proof.loss_proof import LossProof, Trained


@prove.command()
@ends_with_exit_code
def loss(
    context: typer.Context,
    job: JobName,
    plan: Annotated[Path, typer.Option("--plan", metavar="FILE", help="The plan to test against the baseline.")],
    pairs: Annotated[
        int,
        typer.Option(metavar="N", min=3, help="Pairs of whole runs, each with its own seed; fixed before the test."),
    ] = 5,
    margin: Annotated[
        float, typer.Option(metavar="P", min=1e-4, help="The largest difference that is acceptable, in per cent.")
    ] = 0.5,
    metric: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Judge by the loss (of an evaluation, if there is one) or by a metric of the job.",
        ),
    ] = "loss",
    steps: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Only the first N steps of the planned run.")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(metavar="FIRST", min=0, help="The first seed; default: the job's own.")
    ] = None,
    settings: SetOption = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Prove that a plan's loss is equivalent to the baseline's. It trains pairs of runs. Exit code 0: it is.

    Other exit codes: 16, the loss is worse than the margin allows; 17, inconclusive, or the loss is better; 130,
    interrupted; 143, terminated; the code of the error if a run fails for another reason.

    \b
    Examples:
      hasten prove loss digits.py:job --plan plan.toml
      hasten prove loss digits.py:job --plan plan.toml --pairs 12 --metric accuracy
      hasten prove loss digits.py:job --plan plan.toml --steps 200 --margin 2
      hasten prove loss digits.py:job --plan plan.toml --json
    """
    given = job_options(context, settings)
    options = {"pairs": pairs, "margin": margin / 100, "metric": metric, "steps": steps, "first_seed": seeds}
    with CommandOutput(quiet=quiet, as_json=as_json) as output:
        output.header(f"Proving the loss of {job} with {plan}")
        proof = _proven(job, plan, given, output, **options)
        if proof.pairs:
            output.table(table(["seed", "baseline", "plan", "plan is worse by"], rows(proof)))
        following = _next(proof, job, plan, given, margin=margin, metric=metric, steps=steps)
        output.result(_sentence(proof), [], following, _answer(proof))
    raise typer.Exit(exit_code(proof))


def exit_code(proof: LossProof) -> int:
    if proof.interrupt is not None:
        return exit_code_of(proof.interrupt)
    if proof.failure is not None:
        return proof.failure.as_error().exit_code

    return {"equivalent": 0, "harmed": HARMED}.get(proof.verdict, NOT_PROVEN)


def _proven(job: str, plan: Path, given: JobOptions, output: CommandOutput, **options: Any) -> LossProof:
    from hasten.facts.machine import read_machine
    from hasten.training.setup.load_job import split_name
    from hasten.tuning.proof.loss_proof import LONGEST_SECONDS, prove_loss
    from hasten.tuning.trials.arms import Arms, Limits
    from hasten.tuning.trials.trial_outcome import ArmFailed

    split_name(job)
    planned = read(plan)
    assert planned is not None
    output.machine(read_machine().summary)
    try:
        arms = Arms(job, Limits(window_seconds=LONGEST_SECONDS), options=given)
        with closing(output.progress("training pairs")) as waiting:
            return prove_loss(arms, planned, watch=waiting, **options)
    except ArmFailed as failure:
        raise failure.as_error() from failure


def _next(
    proof: LossProof, job: str, plan: Path, options: JobOptions, *, margin: float, metric: str, steps: int | None
) -> str:
    """Train by the plan, train without it, or test again with as many pairs as needed, from new seeds."""
    if exit_code(proof) == 0:
        return command("train", job, plan, options)
    needed = proof.wanted if proof.interrupted else proof.judgement.pairs_needed if proof.judgement else None
    if needed is None:
        return command("train", job, None, options)
    asked: dict[str, object] = {"--pairs": needed}
    if not proof.interrupted:  # a test on the same pairs is not a new test
        asked["--seeds"] = proof.pairs[-1].seed + 1
    given = {"--margin": (margin, 0.5), "--metric": (metric, "loss"), "--steps": (steps, None)}
    asked |= {option: value for option, (value, default) in given.items() if value != default}
    words = [word for option, value in asked.items() for word in (option, f"{value}")]
    return shlex.join(["hasten", "prove", "loss", job, "--plan", str(plan), *words, *options.words])


def _sentence(proof: LossProof) -> Sentence:
    from hasten.tuning.proof.loss_proof import TRAINING

    criterion = proof.criterion
    where = "of the last tenth of training" if criterion.metric == TRAINING else "of the last evaluation"
    judged_by = f"judged by {criterion.metric} {where}, with a margin of {criterion.margin:.2%}"
    headline, _, figures = proof.sentence.partition(": ")
    return Sentence(headline=headline, small_print="; ".join(filter(None, [figures, judged_by])))


def rows(proof: LossProof) -> list[list[str]]:
    """Seed, both values, and the difference, positive where planned is worse; of a failure its class."""
    from hasten.tuning.proof.loss_proof import value_of
    from hasten.tuning.trials.trial_outcome import ArmFailed

    found: list[list[str]] = []
    for pair in proof.pairs:
        sides = (pair.plain, pair.planned)
        plain, planned = (
            math.nan if isinstance(side, ArmFailed) else value_of(side, proof.criterion) for side in sides
        )
        failed = [side.outcome.value if isinstance(side, ArmFailed) else "" for side in sides]
        harm = (planned - plain) / abs(plain) if plain else math.nan
        worse = UNKNOWN if math.isnan(harm) else f"{-harm if proof.criterion.higher_is_better else harm:+.2%}"
        found.append([str(pair.seed), failed[0] or decimal(plain), failed[1] or decimal(planned), worse])
    return found


def _answer(proof: LossProof) -> dict[str, Any]:
    from hasten.tuning.proof.loss_proof import value_of
    from hasten.tuning.trials.trial_outcome import ArmFailed

    def fields(side: Trained | ArmFailed) -> dict[str, Any]:
        if isinstance(side, ArmFailed):
            return {"failed": side.outcome.value, "what": side.what}
        return {"value": value_of(side, proof.criterion), "steps": len(side.losses)}

    judgement, criterion = proof.judgement, proof.criterion
    found: dict[str, Any] = {
        "verdict": proof.verdict,
        "interrupted": proof.interrupted,
        "metric": criterion.metric,
        "margin": criterion.margin,
        "higher_is_better": criterion.higher_is_better,
        "wanted": proof.wanted,
        "pairs": [
            {"seed": pair.seed, "baseline": fields(pair.plain), "planned": fields(pair.planned)} for pair in proof.pairs
        ],
    }
    names = ("harm", "low", "high", "spread", "visible_harm", "plain_mean", "unharmed", "pairs_needed")
    return found | {name: None if judgement is None else getattr(judgement, name) for name in names}
