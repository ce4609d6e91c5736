"""Scripts whose training a library runs: their trials, what is proven of them, and scripts of several processes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from hasten.facts.choice import Choice
from hasten.facts.plan import Plan
from hasten.scripts.edits.places import edited_sources, places_of
from hasten.scripts.proving.script_prover import ScriptProver
from hasten.scripts.running.program import Program
from hasten.scripts.trials.script_arms import observe, script_arms
from hasten.tuning.search.candidates import plan_of
from hasten.tuning.trials.arms import Arms
from hasten.tuning.trials.other_programs import OtherPrograms
from hasten.tuning.trials.trial_outcome import ArmFailed
from support.scripts.programs import CORPUS, PROGRAMS

LIBRARIES = {
    "hf_trainer.py": "transformers.TrainingArguments",
    "lightning_digits.py": "lightning.Trainer",
    "fabric_segments.py": "lightning.Fabric",
    "accelerate_loop.py": "accelerate.Accelerator",
}
BF16 = [Choice(technique="precision", value="bf16")]
WORKERS = [Choice(technique="loader_workers", value=2), Choice(technique="persistent_workers", value=True)]


def copied(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    for needed in PROGRAMS[f"libraries/{name}"].needs.split():
        pytest.importorskip(needed)
    (folder / "own").mkdir()
    shutil.copy(CORPUS / "libraries" / name, folder / "own")
    monkeypatch.chdir(folder / "own")
    return Program(name=name)


def arms_of(program: Program, folder: Path) -> Arms:
    return script_arms(program, observe(program), folder, OtherPrograms(None))


@pytest.mark.proof
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", LIBRARIES)
def test_an_argument_of_the_library_changes_its_gradients_as_it_says(name, tmp_path, monkeypatch):
    program = copied(name, tmp_path, monkeypatch)
    seen = observe(program)
    assert seen.loader is not None
    assert seen.loader.batch_size  # of a loader that a library makes with a batch sampler too
    places = places_of(seen, program)
    assert places.trainer is not None
    assert places.trainer.kind == LIBRARIES[name]
    assert edited_sources([*BF16, *WORKERS], places, program.path.parent)
    arms = arms_of(program, tmp_path)
    with arms.start("plain", Plan()) as arm:
        arm.window(1)
        refused = arm.ask("survey")["refused"]
    if name == "accelerate_loop.py":
        assert refused["batches_by_index"].startswith("accelerate makes another loader")
    assert refused.get("fused_optimizer", "the optimizer is already fused") == "the optimizer is already fused"
    (tmp_path / "proof").mkdir()
    prover = ScriptProver(arms, tmp_path / "proof")
    same = prover.judge_gradients(plan_of([Choice(technique="threads", value=1)]))
    assert same.passes, same.reason
    lower = prover.judge_gradients(plan_of([*BF16, *WORKERS]))
    assert not lower.passes
    assert lower.gradient_error is not None
    assert lower.gradient_error > 100


@pytest.mark.proof
def test_an_epoch_of_lightning_that_ends_early_is_validated(tmp_path, monkeypatch):
    program = copied("lightning_digits.py", tmp_path, monkeypatch)
    source = program.path.read_text()
    marker = tmp_path / "validated"
    program.path.write_text(
        source.replace(
            "        logits = self(x)\n", f"        logits = self(x)\n        open({str(marker)!r}, 'w')\n"
        ).replace("devices=1,", "devices=1, num_sanity_val_steps=0,")
    )
    arms = arms_of(program, tmp_path)
    with arms.start("plain", Plan()) as arm:
        arm.window(3)
        assert not marker.exists()
        arm.ask("turn")
        assert marker.exists()


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('torch.distributed.init_process_group("gloo")', "needs a launcher: .*start the ranks by hasten tune --nproc"),
        pytest.param("torch.multiprocessing.spawn(print, nprocs=2)", "spawn starts", marks=pytest.mark.proof),
    ],
)
def test_a_script_of_several_processes_is_refused(line, why, tmp_path, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(f"import torch.distributed\nimport torch.multiprocessing\n{line}\n")
    with pytest.raises(ArmFailed, match=why):
        observe(Program(name="train.py"))
