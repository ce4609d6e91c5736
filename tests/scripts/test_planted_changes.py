"""A technique that changes the training is rejected, whatever it claims; one that changes nothing passes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hasten.facts.choice import Choice, Preserves
from hasten.facts.plan import Plan
from hasten.facts.plan_file import plan_to_toml
from hasten.facts.scripts.seen import as_table
from hasten.facts.trials import Proven
from hasten.scripts.edits.places import places_of
from hasten.scripts.proving.script_prover import ScriptProver
from hasten.scripts.running.program import Program
from hasten.scripts.trials.script_arms import observe, script_arms
from hasten.tuning.proof.claim_proofs import prove
from hasten.tuning.proof.loss_proof import paired_curves
from hasten.tuning.proof.short_runs import FEWEST_STEPS, SEEDS, ShortRuns
from hasten.tuning.search.candidates import plan_of
from hasten.tuning.search.search_log import Options, SearchLog
from hasten.tuning.trials.arms import Arms
from hasten.tuning.trials.other_programs import OtherPrograms
from hasten.tuning.trials.preloaded_libraries import libraries_of
from hasten.tuning.trials.trial_process import TrialProcess
from support.scripts.planted_changes import (
    CELLS,
    DIGITS,
    FIRST,
    FRIEDMAN,
    GPT,
    LBFGS,
    PLANTED,
    RING,
    SHAPES,
    SPIRALS,
    Planted,
)
from support.scripts.programs import CORPUS, PROGRAMS

CHANGED = "changed.py"
IN_THE_SUITE = ("dropout switched off", (DIGITS, Preserves.BITS))

Proof = Callable[..., list[Proven]]


def also_in_the_suite(cases: Iterable[Any]) -> list[Any]:
    return [each if each in IN_THE_SUITE else pytest.param(*as_tuple(each), marks=pytest.mark.proof) for each in cases]


def as_tuple(case: Any) -> tuple[Any, ...]:
    return case if isinstance(case, tuple) else (case,)


@pytest.fixture
def proven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Proof:
    """What the proof of a plan says whose trials run the changed script, and those of the baseline the script itself.
    in_both: a text of both -> another."""

    def records(planted: Planted, in_both: tuple[str, str] = ("", "")) -> list[Proven]:
        for needed in PROGRAMS[planted.script].needs.split():
            pytest.importorskip(needed)
        own = tmp_path / "own"
        own.mkdir()
        monkeypatch.chdir(own)
        program = Program(name=Path(planted.script).name)
        source = (CORPUS / planted.script).read_text()
        assert in_both[0] in source
        for name, text in ((program.name, source), (CHANGED, planted.made(source))):
            Path(name).write_text(text.replace(*in_both, 1))
        seen = observe(program)
        unchanged = plan_to_toml(replace(Plan(), script=places_of(seen, program)))
        libraries = libraries_of(f"{program.path}:")

        def launch(plan: Plan) -> TrialProcess:
            runs = replace(program, name=CHANGED) if plan.choices else program
            serves = "hasten.scripts.trials.script_process:serve_trial"
            return TrialProcess(serves, libraries, runs, as_table(seen), unchanged)

        arms = Arms(f"{program.path}:", place=tmp_path, launch=launch)
        log = SearchLog(options=Options(), keep=lambda record: None, report=lambda doing: None)
        choice = Choice(technique="planted", value=True, preserves=planted.claim)
        left = prove(arms, (choice,), log, ShortRuns(first_seed=0, steps=planted.steps), ScriptProver)
        assert left == ((choice,) if log.is_sound(choice) else ())
        return log.proofs

    return records


@pytest.mark.timeout(900)
@pytest.mark.parametrize("change", also_in_the_suite(PLANTED))
def test_a_change_of_the_training_is_rejected(change, proven):
    planted = PLANTED[change]
    reasons = [each.reason for each in proven(planted) if not each.passes]
    assert reasons
    assert planted.says in reasons[0]


UNCHANGED = [
    *((script, claim) for script in (DIGITS, SHAPES, SPIRALS) for claim in list(Preserves)[:3]),
    *((script, Preserves.ROUNDING) for script in (FRIEDMAN, CELLS, GPT, FIRST, RING)),
]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("script", "claim"), also_in_the_suite(UNCHANGED))
def test_a_plan_that_changes_nothing_passes(script, claim, proven):
    records = proven(Planted(script, claim, [], ""))
    assert records
    assert all(each.passes for each in records)


HONEST = {
    DIGITS: [("precision", "bf16"), ("channels_last", True)],
    SHAPES: [("precision", "bf16"), ("loader_workers", 2)],
    SPIRALS: [("precision", "bf16"), ("fused_optimizer", "fused")],
    FRIEDMAN: [("precision", "bf16")],
    CELLS: [("precision", "bf16"), ("loader_workers", 2)],
    GPT: [("precision", "bf16"), ("fused_optimizer", "foreach")],
    FIRST: [("precision", "bf16")],
    LBFGS: [("precision", "bf16")],
}
FLOAT64 = "torch.set_default_dtype(torch.float64)\n"  # autocast leaves it as it is


@pytest.mark.timeout(900)
@pytest.mark.proof
@pytest.mark.parametrize("script", HONEST)
def test_techniques_have_the_first_step_of_the_baseline(script, tmp_path, monkeypatch):
    """Other random numbers of dropout, as channels_last draws them, and of transforms in workers are none of theirs."""
    (tmp_path / "own").mkdir()
    monkeypatch.chdir(tmp_path / "own")
    program = Program(name=Path(script).name)
    Path(program.name).write_text((CORPUS / script).read_text().replace(FLOAT64, ""))
    arms = script_arms(program, observe(program), tmp_path, OtherPrograms(None))
    choices = [Choice(technique=technique, value=value) for technique, value in HONEST[script]]
    curves = paired_curves(arms, plan_of(choices), range(SEEDS), FEWEST_STEPS)
    assert "first step" not in curves.sentence.removeprefix(f"the first {FEWEST_STEPS} steps")


@pytest.mark.timeout(900)
@pytest.mark.proof
def test_a_baseline_that_differs_from_itself_is_the_reason_and_not_the_technique(proven):
    seeds = ("torch.manual_seed(0)", "torch.seed()")
    reasons = [each.reason for each in proven(Planted(FIRST, Preserves.BITS, [], ""), seeds)]
    assert "no bits can be compared, as the baseline has none" in reasons[0]
