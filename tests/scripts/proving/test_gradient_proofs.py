"""Which plans have the gradients of their script up to rounding, and of which scripts no gradient is judged."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from torch import nn

from hasten.facts.choice import Choice, Preserves
from hasten.facts.plan import Plan
from hasten.scripts.proving.dropout import dropout_removed
from hasten.scripts.proving.script_prover import ScriptProver
from hasten.scripts.running.program import Program
from hasten.scripts.trials.script_arms import observe, script_arms
from hasten.tuning.search.candidates import plan_of
from hasten.tuning.trials.other_programs import OtherPrograms
from support.scripts.programs import CORPUS

DISTILLED = "steps/distill.py"  # from teachers whose weights the script solves for
ONE_THREAD = Choice(technique="threads", value=1, preserves=Preserves.ROUNDING)
IN_TORCHSCRIPT = """\
import torch
from torch import nn

torch.manual_seed(0)
model = torch.jit.script(nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.Linear(16, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(100):
    loss = model(torch.randn(32, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def prover_of(source: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> ScriptProver:
    (place / "own").mkdir()
    monkeypatch.chdir(place / "own")
    program = Program(name="train.py")
    Path(program.name).write_text(source)
    return ScriptProver(script_arms(program, observe(program), place, OtherPrograms(None)), place)


@pytest.mark.timeout(300)
@pytest.mark.proof
def test_what_a_script_computes_before_its_training_may_be_rounded_otherwise(tmp_path, monkeypatch):
    pytest.importorskip("sklearn")
    prover = prover_of((CORPUS / DISTILLED).read_text(), tmp_path, monkeypatch)
    answer = prover.judge_gradients(plan_of([ONE_THREAD]))
    assert answer.passes, answer.reason
    assert answer.gradient_error is not None


@pytest.mark.timeout(300)
@pytest.mark.proof
def test_a_trained_module_of_torchscript_has_a_recipe_and_no_gradient_that_is_judged(tmp_path, monkeypatch):
    prover = prover_of(IN_TORCHSCRIPT, tmp_path, monkeypatch)
    assert prover.recipe_of(Plan())["batches read"]
    answer = prover.judge_gradients(plan_of([ONE_THREAD]))
    assert answer.unjudged == "the script trains a module of TorchScript, which cannot compute in float64"


@pytest.mark.timeout(300)
@pytest.mark.proof
def test_a_gradient_that_depends_on_the_number_of_threads_is_not_taken_for_rounding(tmp_path, monkeypatch):
    source = IN_TORCHSCRIPT.replace("torch.jit.script", "").replace("model(", "torch.get_num_threads() * model(")
    prover = prover_of(source, tmp_path, monkeypatch)
    assert "where only rounding and the number of threads differ" in (
        prover.judge_gradients(plan_of([ONE_THREAD])).unjudged or ""
    )


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_torchscript_compiles_the_dropout_of_torch_while_it_is_replaced():
    with ExitStack() as resources:
        dropout_removed(resources)
        compiled = torch.jit.script(nn.Dropout(0.5))
    kept = compiled(torch.ones(1000)).count_nonzero()
    assert 300 < kept < 700
