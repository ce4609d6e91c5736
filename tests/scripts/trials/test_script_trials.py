"""Trials of a script: what a process that runs an edited copy of it answers, and what is proven of the edit."""

from __future__ import annotations

import math
import shutil
from hashlib import sha256
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from hasten.facts.choice import Choice, Preserves
from hasten.facts.plan import Plan
from hasten.facts.scripts.seen import Seen
from hasten.report.script_sentence import found_lines
from hasten.scripts.proving.script_prover import ScriptProver
from hasten.scripts.running.notebook import place_in
from hasten.scripts.running.program import Program
from hasten.scripts.trials.script_arms import observe, script_arms
from hasten.tuning.search.candidates import plan_of
from hasten.tuning.search.plan_profile import profile_plan
from hasten.tuning.trials.arms import Arm, Arms
from hasten.tuning.trials.other_programs import OtherPrograms
from hasten.tuning.trials.trial_outcome import ArmFailed, Outcome
from support.scripts.programs import CORPUS

SCRIPT = "train_digits.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("own")
    shutil.copy(CORPUS / "plain" / SCRIPT, made)
    return made


@pytest.fixture(scope="module")
def seen(folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return observe(Program(name=SCRIPT, options=("--epochs", "2")))


@pytest.fixture
def arms(folder: Path, seen: Seen, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Arms:
    monkeypatch.chdir(folder)
    return script_arms(Program(name=SCRIPT, options=("--epochs", "2")), seen, tmp_path, OtherPrograms(None))


def planned(technique: str, value: str | int | bool) -> Plan:
    return plan_of([Choice(technique=technique, value=value)])


def test_windows_count_steps_and_turns_are_timed_apart(arms):
    with arms.start("plain", Plan()) as arm:
        first, second = arm.window(1), arm.window(5)
        turn = arm.ask("turn")["seconds"]
        third = arm.window(5)
    assert (first.steps, second.steps, third.steps) == (1, 5, 5)
    assert 0 < second.seconds < math.inf
    assert turn > 0


def test_the_parts_of_a_step_do_not_overlap_where_a_closure_runs_in_the_update(tmp_path, monkeypatch):
    shutil.copy(CORPUS / "steps" / "lbfgs_fit.py", tmp_path)
    monkeypatch.chdir(tmp_path)
    program = Program(name="lbfgs_fit.py")
    with script_arms(program, observe(program), tmp_path, OtherPrograms(None)).start("plain", Plan()) as arm:
        arm.window(1)
        spent = arm.ask("budget", steps=3)["spent"]
    assert min(spent[part] for part in ("forward", "backward", "optimizer")) > 0
    assert spent["python"] > 0  # what is left of the step


def test_a_script_that_ends_is_started_again(arms):
    with arms.start("plain", Plan()) as arm:
        assert [arm.window(30).steps for _ in range(3)] == [30, 30, 30]  # it has 48 steps


def test_a_script_of_one_epoch_has_the_turn_of_its_end(folder: Path, seen: Seen, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(folder)
    program = Program(name=SCRIPT, options=("--epochs", "1"))
    with script_arms(program, seen, tmp_path, OtherPrograms(None)).start("plain", Plan()) as arm:
        arm.window(5)
        assert 0 < arm.ask("turn")["seconds"] < 10


def test_what_a_script_does_between_two_epochs_is_in_its_profile_and_its_start_is_not(arms, monkeypatch):
    def ask(arm: Arm, do: str, *given: float, **fields: Any) -> dict[str, Any]:
        answer = {"seconds": 9.0} if do == "turn" else asked(arm, do, *given, **fields)
        return answer | {"turns": [each for each in answer["turns"] if not each[0]]} if do == "window" else answer

    asked = Arm.ask
    monkeypatch.setattr(Arm, "ask", ask)
    profile = profile_plan(arms, SCRIPT, Preserves.STATISTICS)
    assert profile.length.turn_seconds == 9.0
    assert 0 < profile.start_seconds < 9.0


def test_two_trials_of_an_unchanged_script_have_the_same_losses(arms):
    found = list[list[float]]()
    for _ in range(2):
        with arms.start("plain", Plan()) as arm:
            found.append(arm.ask("two epochs", steps=4)["losses"])
    assert len(found[0]) == 8
    assert found[0] == found[1]


def test_another_seed_trains_otherwise(arms):
    found = list[list[float]]()
    for seed in (0, 1):
        with arms.start("plain", Plan()) as arm:
            found.append(arm.ask("train", seed=seed, steps=3, metric=None, seconds=60.0)["losses"])
    assert found[0] != found[1]


def test_gradients_and_updates_of_another_implementation_are_equal_up_to_rounding(arms, tmp_path):
    answer = ScriptProver(arms, tmp_path).judge_gradients(planned("threads", 1))
    assert answer.passes, answer.reason


PARTS_AND_NOISE = """
    import torch
    from torch import nn

    class Agent(nn.Module):
        def __init__(self):
            super().__init__()
            self.state, self.actor = nn.GRUCell(4, 8), nn.Linear(8, 2)

    agent = Agent()
    optimizer = torch.optim.Adam(agent.parameters(), lr=1e-3)
    for step in range(40):
        state = torch.zeros(16, 8)
        for _ in range(3):
            state = agent.state(torch.randn(16, 4), state)
        action = agent.actor(state)
        drawn = torch.distributions.Normal(action, 0.5).rsample()
        loss = (drawn + torch.randn_like(action)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        norm = sum(each.grad.norm() for each in agent.parameters())  # after the update
"""


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(dedent(PARTS_AND_NOISE), id="parts"),
        pytest.param((CORPUS / "steps/gan_ring.py").read_text(), id="two networks", marks=pytest.mark.proof),
    ],
)
def test_gradients_of_modules_that_are_called_with_outputs_of_each_other_are_judged(script, tmp_path, monkeypatch):
    for name in ("users", "arms"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "users")
    Path("train.py").write_text(script)
    program = Program(name="train.py")
    arms = script_arms(program, observe(program), tmp_path / "arms", OtherPrograms(None))
    answer = ScriptProver(arms, tmp_path / "arms").judge_gradients(planned("threads", 1))
    assert answer.passes, answer.reason


@pytest.mark.proof
def test_a_lower_precision_is_more_than_rounding(arms, tmp_path):
    prover = ScriptProver(arms, tmp_path)
    answer = prover.judge_gradients(planned("precision", "bf16"))
    assert not answer.passes
    assert answer.gradient_error is not None
    assert answer.gradient_error > 100


PREPARES = """
    from pathlib import Path
    import torch
    from torch.utils.data import DataLoader
    data = Path("data/large.bin")
    prepares = not data.exists()
    if prepares:
        images = list(DataLoader(range(9)))
        data.parent.mkdir()
        data.write_bytes(bytes(2**20))
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters())
    for features in DataLoader(torch.zeros(9, 1)):
        (model(features).sum() * 0 + prepares).backward()
        optimizer.step()
"""


def test_data_that_the_script_prepares_are_kept_for_its_trials(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(dedent(PREPARES))
    program = Program(name="train.py")
    seen = observe(program)
    what = "the script wrote data (1.00 MiB) before its first step"
    assert ("prepared", f"{what}; trials share this copy, which is removed at the end") in found_lines(seen, place_in)
    assert seen.loader is not None
    assert seen.loader.number == 0, "in a trial, which finds the data, no other loader is made before"
    with script_arms(program, seen, tmp_path, OtherPrograms(None)).start("plain", Plan()) as arm:
        losses = arm.ask("train", seed=0, steps=3, metric=None, seconds=60.0)["losses"]
    assert losses == [0.0] * 3
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_data_that_a_script_refuses_to_find_are_prepared_in_every_trial(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(dedent(PREPARES).replace("prepares = not data.exists()", "prepares = True"))
    assert observe(Program(name="train.py")).prepared is None


def test_the_traceback_of_a_script_that_fails_names_the_users_own_file(tmp_path, monkeypatch):
    (tmp_path / "fails.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ArmFailed) as failed:
        observe(Program(name="fails.py"))
    assert failed.value.sent is not None
    assert f'File "{tmp_path / "fails.py"}", line 1' in failed.value.sent.trace


def test_a_script_that_refuses_its_options_is_not_called_a_script_that_trains_nothing(folder, monkeypatch):
    monkeypatch.chdir(folder)
    with pytest.raises(ArmFailed, match="ended with exit code 2") as failed:
        observe(Program(name=SCRIPT, options=("--json",)))
    assert failed.value.sent is not None
    assert "python train_digits.py --json" in failed.value.sent.fix


def test_an_edit_that_the_source_does_not_allow_fails_its_trial_with_the_reason(arms):
    with (
        pytest.raises(ArmFailed, match="needs hasten's own training loop") as failed,
        arms.start("x", planned("cache", "disk")),
    ):
        pass
    assert failed.value.outcome is Outcome.REFUSED


def test_the_users_folder_stays_unchanged(arms, folder):
    def digests() -> dict[str, str]:
        return {path.name: sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}

    before = digests()
    with arms.start("planned", planned("fused_optimizer", "foreach")) as arm:
        arm.window(3)
        arm.ask("turn")
    assert digests() == before
    assert list(before) == [SCRIPT]
