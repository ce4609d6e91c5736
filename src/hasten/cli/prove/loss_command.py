"""`hasten prove loss`: whether a plan leaves the loss as it is.

How a proof ends is for scripts, and stands with all other exit codes in errors.py. Only what is proven is a success. Of
`hasten prove loss`: a plan that is better than the job as it is has done no harm, but is no sameness either: so shows a
lost regulariser. Interrupted, it ends as such, whatever the finished pairs say. Where an arm failed in a way that says
nothing of the loss, the code is that of the failure.
"""

from __future__ import annotations

import json
import math
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hasten.cli.application import JobName, command, ending_in_one_block, exit_code_of, prove

if TYPE_CHECKING:
    from hasten.tune.proof.loss_proof import LossProof
    from hasten.tune.proof.paired_runs import Trained


@prove.command()
@ending_in_one_block
def loss(
    job: JobName,
    plan: Annotated[Path, typer.Option("--plan", metavar="FILE", help="The plan whose runs are to be no worse.")],
    pairs: Annotated[
        int,
        typer.Option(metavar="N", min=3, help="Pairs of whole runs, fixed beforehand, each from a seed of its own."),
    ] = 5,
    margin: Annotated[
        float, typer.Option(metavar="P", min=1e-4, help="The largest difference that nobody minds, in per cent.")
    ] = 0.5,
    metric: Annotated[
        str, typer.Option(metavar="NAME", help="Judge by it: the loss, of an evaluation if there is one, or a metric.")
    ] = "loss",
    steps: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Only the first steps of the planned run.")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(metavar="FIRST", min=0, help="The first of the seeds; the job's own if not given.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Answer with one JSON object.")] = False,
) -> None:
    """Prove that a plan leaves the loss as it is, by pairs of runs. Exit code 0 says that it does.

    Other exit codes: 16, it is worse than the margin allows; 17, nothing is proven, or it is better; 130, interrupted;
    143, terminated; those of errors where a run fails for another reason.

    \b
    Examples:
      hasten prove loss digits.py:job --plan plan.toml
      hasten prove loss digits.py:job --plan plan.toml --pairs 12 --metric accuracy
      hasten prove loss digits.py:job --plan plan.toml --steps 200 --margin 2
    """
    proof, report = _proven(
        job,
        plan,
        pairs=pairs,
        margin=margin / 100,
        metric=metric,
        steps=steps,
        first_seed=seeds,
    )
    next_command = _next(proof, job, plan, margin=margin, metric=metric, steps=steps)
    if as_json:
        typer.echo(json.dumps(_answer(proof, next_command) | {"report": report or None}))
    else:
        _show(proof, f"{job} with {plan}", [*([("report", report)] if report else []), ("next", next_command)])
    raise typer.Exit(exit_code(proof))


def exit_code(proof: LossProof) -> int:
    if proof.interrupt is not None:
        return exit_code_of(proof.interrupt)
    if proof.failure is not None:
        return proof.failure.as_error().exit_code
    from hasten.errors import HARMED, NOT_PROVEN

    return {"equivalent": 0, "harmed": HARMED}.get(proof.verdict, NOT_PROVEN)


def _proven(job: str, plan: Path, **options: Any) -> tuple[LossProof, str]:
    """And what the report of the plan shows of it."""
    from hasten.cli.application import read
    from hasten.cli.prove.loss_evidence import add_losses, trials_of
    from hasten.report.terminal.progress_bar import Waiting
    from hasten.training.setup.load_job import split_name
    from hasten.tune.proof.loss_proof import LONGEST_SECONDS, prove_loss
    from hasten.tune.trials.arms import Arms, Limits
    from hasten.tune.trials.trial_outcome import ArmFailed

    split_name(job)
    planned = read(plan)
    assert planned is not None
    waiting = Waiting(f"training {options['pairs']} pairs")
    try:
        with Arms(job, Limits(build_seconds=LONGEST_SECONDS)) as arms:
            trials = trials_of(arms, plan, planned)
            proof = prove_loss(arms, planned, watch=waiting, **options)
    except ArmFailed as failure:
        raise failure.as_error() from failure
    finally:
        waiting.close()
    return proof, add_losses(proof, trials, plan)


def _next(proof: LossProof, job: str, plan: Path, *, margin: float, metric: str, steps: int | None) -> str:
    """What to do now: obey the plan, leave it, or test again with as many pairs as it takes, from new seeds."""
    if exit_code(proof) == 0:
        return command("train", job, plan)
    needed = proof.wanted if proof.interrupted else proof.judgement.pairs_needed if proof.judgement else None
    if needed is None:
        return command("train", job, None)
    asked: dict[str, object] = {"--pairs": needed}
    if not proof.interrupted:  # what has been looked at once is no new test
        asked["--seeds"] = proof.pairs[-1].seed + 1
    given = {"--margin": (margin, 0.5), "--metric": (metric, "loss"), "--steps": (steps, None)}
    asked |= {option: value for option, (value, default) in given.items() if value != default}
    words = [word for option, value in asked.items() for word in (option, f"{value}")]
    return shlex.join(["hasten", "prove", "loss", job, "--plan", str(plan), *words])


def _show(proof: LossProof, title: str, last: list[tuple[str, str]]) -> None:
    from hasten.report.display import table
    from hasten.report.terminal.output import show
    from hasten.report.terminal.text_chart import chart
    from hasten.tune.proof.loss_proof import TRAINING

    criterion = proof.criterion
    where = "of the last tenth of training" if criterion.metric == TRAINING else "of the last evaluation"
    show(title, [("judged by", f"{criterion.metric} {where}, with a margin of {criterion.margin:.2%}")])
    if proof.pairs:
        header = ["seed", "plain", "planned", "planned is worse by"]
        typer.echo("\n" + "\n".join(f"  {line}" for line in table(header, rows(proof))))
    apart = distances(proof)
    if any(apart):
        typer.echo("\ndistance between the two arms' training losses, step by step, in per cent of the loss:")
        typer.echo("\n".join(f"  {line}" for line in chart(apart, height=5)))
    elif apart:
        typer.echo("\n  all training losses of both arms are equal to the last bit")
    show("", [("verdict", proof.sentence), *last])


def rows(proof: LossProof) -> list[list[str]]:
    """Seed, both values, and the difference, positive where planned is worse; of a failure its class."""
    from hasten.report.display import UNKNOWN, decimal
    from hasten.tune.proof.loss_proof import value_of
    from hasten.tune.trials.trial_outcome import ArmFailed

    found: list[list[str]] = []
    for pair in proof.pairs:
        values = [
            math.nan if isinstance(side, ArmFailed) else value_of(side, proof.criterion)
            for side in (pair.plain, pair.planned)
        ]
        shown = [
            side.fate.value if isinstance(side, ArmFailed) else decimal(value)
            for side, value in zip((pair.plain, pair.planned), values, strict=True)
        ]
        harm = (values[1] - values[0]) / abs(values[0]) if values[0] else math.nan
        worse = UNKNOWN if math.isnan(harm) else f"{-harm if proof.criterion.higher_is_better else harm:+.2%}"
        found.append([str(pair.seed), *shown, worse])
    return found


def distances(proof: LossProof) -> list[float]:
    """For each step the mean over all pairs of |planned - plain| / |plain| of the training loss, in per cent; empty
    where not all runs have as many steps."""
    from hasten.tune.proof.paired_runs import losses_of

    if not proof.pairs or any(pair.failed for pair in proof.pairs):
        return []
    curves = [(losses_of(pair.plain), losses_of(pair.planned)) for pair in proof.pairs]
    if len({len(losses) for pair in curves for losses in pair}) > 1:
        return []
    apart = [[abs(b - a) / (abs(a) or 1.0) for a, b in zip(*pair, strict=True)] for pair in curves]
    return [100 * sum(step) / len(step) for step in zip(*apart, strict=True)]


def _answer(proof: LossProof, next_command: str) -> dict[str, Any]:
    from hasten.tune.proof.loss_proof import value_of
    from hasten.tune.trials.trial_outcome import ArmFailed

    def told(side: Trained | ArmFailed) -> dict[str, Any]:
        if isinstance(side, ArmFailed):
            return {"failed": side.fate.value, "what": side.what}
        return {"value": value_of(side, proof.criterion), "steps": len(side.losses)}

    judgement, criterion = proof.judgement, proof.criterion
    found: dict[str, Any] = {
        "verdict": proof.verdict,
        "sentence": proof.sentence,
        "interrupted": proof.interrupted,
        "metric": criterion.metric,
        "margin": criterion.margin,
        "higher_is_better": criterion.higher_is_better,
        "wanted": proof.wanted,
        "pairs": [
            {"seed": pair.seed, "plain": told(pair.plain), "planned": told(pair.planned)} for pair in proof.pairs
        ],
        "next": next_command,
    }
    names = ("harm", "low", "high", "spread", "visible_harm", "plain_mean", "unharmed", "pairs_needed")
    return found | {name: None if judgement is None else getattr(judgement, name) for name in names}
