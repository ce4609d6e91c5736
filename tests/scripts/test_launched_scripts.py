"""Scripts that train in several processes: each rank of a trial does what torchrun's does, and none is left behind."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import psutil
import pytest

from hasten.errors import PlanError
from hasten.facts.choice import Choice
from hasten.facts.plan import Plan
from hasten.facts.ranks import environment_of
from hasten.scripts.edits.patch import patched_files
from hasten.scripts.edits.places import edited_sources, places_of
from hasten.scripts.proving import acceptance
from hasten.scripts.proving.acceptance import PatchedScript
from hasten.scripts.proving.script_prover import ScriptProver
from hasten.scripts.running.program import Program
from hasten.scripts.trials.script_arms import observe, script_arms
from hasten.tuning.search.candidates import plan_of
from hasten.tuning.trials.arms import Arms
from hasten.tuning.trials.other_programs import OtherPrograms
from hasten.tuning.trials.trial_outcome import ArmFailed
from support.scripts.programs import CORPUS, PROGRAMS

RANKS = 2
END_SECONDS = 60.0
SCRIPT = dedent("""
    import os
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    def main():
        dist.init_process_group("gloo")
        torch.manual_seed(dist.get_rank())
        features = torch.randn(240, 3, 8, 8, generator=torch.Generator().manual_seed(0))
        data = TensorDataset(features, features.mean((2, 3)).argmax(1))
        loader = DataLoader(data, batch_size=10, sampler=DistributedSampler(data))
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 3))
        model = DistributedDataParallel(model)
        optimizer = torch.optim.Adam(model.parameters())
        losses = []
        for epoch in range(3):
            loader.sampler.set_epoch(epoch)
            for images, labels in loader:
                loss = nn.functional.cross_entropy(model(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item().hex())
            dist.barrier()
        if dist.get_rank() == 0:
            open("losses.txt", "w").write(" ".join(losses))
        dist.destroy_process_group()

    main()
""")
CHANNELS_LAST = Choice(technique="channels_last", value=True)
EPOCH = 12  # steps of a rank


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With the script; this process is rank 0 of two."""
    (tmp_path / "own").mkdir()
    (tmp_path / "arms").mkdir()
    (tmp_path / "own" / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path / "own")
    for name, value in {**environment_of(0, RANKS, 0), "OMP_NUM_THREADS": "1"}.items():
        monkeypatch.setenv(name, value)
    return tmp_path


def arms_of(folder: Path) -> Arms:
    program = Program(name="train.py")
    return script_arms(program, observe(program), folder / "arms", OtherPrograms(None))


def torchrun(*words: str, ranks: int = RANKS) -> list[str]:
    return [str(Path(sys.executable).with_name("torchrun")), "--nproc-per-node", str(ranks), *words]


def without_ranks() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in environment_of(0, RANKS, 0)}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("if dist.get_rank() == 1: 1 / 0", "rank 1: ZeroDivisionError"),
        pytest.param(
            "if dist.get_rank() == 1: os.kill(os.getpid(), 9)", "rank 1 was killed by SIGKILL", marks=pytest.mark.proof
        ),
        pytest.param("if dist.get_rank() == 0: 1 / 0", "^(?!.*rank).*ZeroDivisionError", marks=pytest.mark.proof),
    ],
)
def test_the_rank_that_fails_is_named(line, why, folder):
    Path("train.py").write_text(SCRIPT.replace("losses = []", f"losses = []\n    {line}"))
    with pytest.raises(ArmFailed) as failed:
        observe(Program(name="train.py"))
    assert failed.match(why)


@pytest.mark.proof
def test_a_trial_has_the_losses_of_torchrun_to_the_bit(folder):
    subprocess.run(torchrun("train.py"), check=True, env=without_ranks())
    plain = [float.fromhex(each) for each in Path("losses.txt").read_text().split()]
    with arms_of(folder).start("plain", Plan()) as arm:
        steps = 3 * EPOCH - 1
        assert arm.ask("train", seed=0, steps=steps, metric=None, seconds=60.0)["losses"] == plain[:steps]


@pytest.mark.proof
def test_all_ranks_end_an_epoch_together_and_start_again_together(folder):
    with arms_of(folder).start("plain", Plan()) as arm:
        arm.window(1)
        for _ in range(3):
            assert arm.window(EPOCH).steps == EPOCH
            assert arm.ask("turn")["seconds"] >= 0


@pytest.mark.proof
def test_all_ranks_start_again_as_they_started_first(folder):
    begin = """
    assert not os.path.exists("losses.txt")
    if not dist.is_initialized():  # libraries remember that they have made it
        dist.init_process_group("gloo")
    """
    source = SCRIPT.replace('    dist.init_process_group("gloo")\n', begin)
    Path("train.py").write_text(source.replace("(model)\n", "(model, process_group=dist.new_group())\n"))
    with arms_of(folder).start("plain", Plan()) as arm:
        first, *others = (arm.ask("window", steps=3 * EPOCH)["losses"] for _ in range(3))
    assert all({*first[:3]} <= {*losses} for losses in others)


@pytest.mark.proof
def test_gradients_that_all_ranks_reduce_are_compared_with_float64(folder, tmp_path):
    program = Program(name="train.py")
    places = places_of(observe(program), program)
    prover = ScriptProver(arms_of(folder), tmp_path / "arms")
    same = prover.judge_gradients(plan_of([Choice(technique="threads", value=2)]))
    assert same.passes, same.reason
    converted = edited_sources([CHANNELS_LAST], places, Path.cwd())["train.py"]
    assert "    model.to(memory_format=torch.channels_last)\n    model = Distributed" in converted
    same = prover.judge_gradients(plan_of([CHANNELS_LAST]))
    assert same.passes, same.reason
    lower = prover.judge_gradients(plan_of([Choice(technique="precision", value="bf16")]))
    assert lower.gradient_error is not None, lower.reason
    assert lower.gradient_error > 100


@pytest.mark.proof
def test_a_model_without_a_name_before_its_wrapper_stays_in_its_memory_format(folder):
    made, wrapped = "model = nn.Sequential", "model = DistributedDataParallel(model)"
    source = SCRIPT.replace(made, "model = DistributedDataParallel(nn.Sequential").replace(f"    {wrapped}\n", "")
    Path("train.py").write_text(source.replace("nn.Linear(288, 3))", "nn.Linear(288, 3)))"))
    program = Program(name="train.py")
    places = places_of(observe(program), program)
    with pytest.raises(PlanError, match="no name where DistributedDataParallel wraps it"):
        edited_sources([CHANNELS_LAST], places, Path.cwd())


@pytest.mark.proof
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("name", "options"), [("hf_trainer", ()), ("lightning_digits", ()), ("accelerate_loop", ("--cpu",))]
)
def test_ranks_whose_training_a_library_runs_take_the_same_steps(name, options, folder, tmp_path):
    for needed in PROGRAMS[f"libraries/{name}.py"].needs.split():
        pytest.importorskip(needed)
    source = (CORPUS / "libraries" / f"{name}.py").read_text()
    Path("train.py").write_text(source.replace("devices=1,", f"devices={RANKS}, strategy='ddp',"))
    program = Program(name="train.py", options=options)
    seen = observe(program)
    steps = PROGRAMS[f"libraries/{name}.py"].updates // RANKS
    assert seen.length.steps == steps
    arms = script_arms(program, seen, tmp_path / "arms", OtherPrograms(None))
    with arms.start("plain", Plan()) as arm:
        arm.window(1)
        for _ in range(3):
            arm.window(steps // 2)
            arm.ask("turn")
    same = ScriptProver(arms, tmp_path / "arms").judge_gradients(plan_of([Choice(technique="threads", value=2)]))
    assert same.passes, same.reason


@pytest.mark.proof
def test_the_patched_file_runs_plainly_as_so_many_processes(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(acceptance, "SLOWER", math.inf)  # the speed of a busy machine is not judged
    program, plan = Program(name="train.py"), plan_of([Choice(technique="fused_optimizer", value="fused")])
    seen = observe(program)
    plan = replace(plan, script=places_of(seen, program))
    files, arms = patched_files(plan, Path.cwd()), arms_of(folder)
    patched = PatchedScript(program=program, seen=seen, plan=plan, files=files, place=tmp_path / "arms")
    found = patched.accepted(arms, lambda doing: None)
    assert found.passes, found.reason
    assert found.reason.startswith("has the losses of its trial to the last bit")
    fails = files[0].after.replace(b"losses = []", b"losses = []\n    if dist.get_rank() == 1: 1 / 0")
    refuted = replace(patched, files=[replace(files[0], after=fails)])
    assert refuted.accepted(arms, lambda doing: None).reason.startswith("fails: rank 1: ZeroDivisionError")
    assert not [*(tmp_path / "arms").iterdir()]
    assert [path.name for path in Path.cwd().iterdir()] == ["train.py"]


def until_trials(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """All of its processes, once its trials run."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("profiling the baseline"):
            break
    return psutil.Process(process.pid).children(recursive=True)


@pytest.mark.proof
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_search_under_torchrun_that_ends_early_leaves_no_process(folder, number):
    command = torchrun("-m", "hasten", "tune", "--busy", "--seconds", "300", "train.py")
    with subprocess.Popen(
        command, env=without_ranks(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        started = until_trials(process)
        if number == signal.SIGKILL:
            leads = [each for each in started if each.ppid() == process.pid and each.environ().get("RANK") == "0"]
            leads[0].kill()
        else:
            process.send_signal(number)
        process.communicate()
    _, alive = psutil.wait_procs(started, timeout=END_SECONDS)
    assert not alive
    assert {path.name for path in Path.cwd().iterdir()} <= {
        "train.py",
        "plan.toml",
        "plan.trials.jsonl",
        ".plan.toml.lock",
    }


@pytest.mark.proof
@pytest.mark.timeout(900)
def test_torchrun_tunes_a_script_to_a_plan_that_it_runs(folder):
    command = torchrun("-m", "hasten", "tune", "--busy", "--seconds", "30", "train.py")
    found = subprocess.run(command, env=without_ranks(), capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert "DistributedDataParallel" in found.stdout
    assert found.stdout.count("Tuning train.py") == 1
    assert f"torchrun --nproc-per-node {RANKS}" in found.stdout
    planned = torchrun("-m", "hasten", "run", "--plan", "plan.toml", "train.py")
    subprocess.run(planned, check=True, env=without_ranks())
    assert len(Path("losses.txt").read_text().split()) == 3 * EPOCH
