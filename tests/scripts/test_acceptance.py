"""The patched file is run plainly: what it does otherwise than its trial is found, and then there is no patch."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hasten.facts.choice import Choice
from hasten.scripts.edits.patch import patched_files
from hasten.scripts.edits.places import places_of
from hasten.scripts.proving.acceptance import Acceptance, PatchedScript
from hasten.scripts.running.program import Program
from hasten.scripts.trials.script_arms import observe, script_arms
from hasten.tuning.search.candidates import plan_of
from hasten.tuning.trials.other_programs import OtherPrograms
from support.scripts.programs import CORPUS

Accepted = Callable[..., Acceptance]
FOREACH = Choice(technique="fused_optimizer", value="foreach")
KEEP = Choice(technique="allocator", value="keep_freed_memory")


@pytest.fixture
def accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Accepted:
    """Of a script of the corpus with a choice. change: a text of the patched file -> another; own_change: of
    the script itself."""

    def answer(
        script: str,
        change: tuple[str, str] | None = None,
        own_change: tuple[str, str] = ("", ""),
        choice: Choice = FOREACH,
    ) -> Acceptance:
        own, place = tmp_path / "own", tmp_path / "place"
        own.mkdir()
        place.mkdir()
        source = (CORPUS / script).read_text()
        assert own_change[0] in source
        (own / Path(script).name).write_text(source.replace(*own_change, 1))
        monkeypatch.chdir(own)
        program = Program(name=Path(script).name)
        seen = observe(program)
        plan = replace(plan_of([choice]), script=places_of(seen, program))
        files = patched_files(plan, own)
        if change is not None:
            before, after = change
            assert before.encode() in files[0].after
            files = [replace(files[0], after=files[0].after.replace(before.encode(), after.encode(), 1))]
        arms = script_arms(program, seen, place, OtherPrograms(None))
        patched = PatchedScript(program=program, seen=seen, plan=plan, files=files, place=place)
        found = patched.accepted(arms, lambda doing: None)
        assert [each.name for each in own.iterdir()] == [Path(script).name]
        assert not [*place.iterdir()]
        return found

    return answer


PLAINLY = """import sys
from importlib.util import find_spec
assert find_spec("torch") and not {"torch", "numpy"} & {*sys.modules}
import torch
"""


def test_a_patched_file_is_run_without_preparation_and_has_the_losses_of_its_trial_to_the_bit(accepted):
    found = accepted("plain/train_digits.py", ("import torch\n", PLAINLY))
    assert found.passes, found.reason
    assert found.reason.startswith("has the losses of its trial to the last bit, in 8 steps; a step takes ")


@pytest.mark.proof
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs the GNU C library")
def test_a_script_that_keeps_freed_memory_keeps_its_losses(accepted):
    found = accepted("plain/train_digits.py", choice=KEEP)
    assert found.passes, found.reason
    assert found.reason.startswith("has the losses of its trial to the last bit, in 8 steps")


@pytest.mark.proof
def test_a_script_that_seeds_nothing_is_compared_from_one_seed_and_that_is_said(accepted):
    found = accepted("plain/moons_unseeded.py")
    assert found.passes, found.reason
    assert "from the same seed, as the script does not seed" in found.reason


@pytest.mark.proof
def test_an_order_of_strings_that_each_process_draws_is_that_of_the_trials_in_the_patched_file(accepted):
    from_words = "torch.manual_seed(hash('words') % 99991)"
    found = accepted("plain/train_digits.py", own_change=("torch.manual_seed(args.seed)", from_words))
    assert found.passes, found.reason
    assert "from the same seed, as the script does not seed" in found.reason


LOSSES = "F.nll_loss(output, target)\n        loss.backward()"


@pytest.mark.proof
def test_losses_that_are_no_scalars_are_compared_as_well(accepted):
    each = LOSSES.replace("target)", "target, reduction='none')").replace("()", "(torch.ones(len(data)) / len(data))")
    found = accepted("plain/train_digits.py", own_change=(LOSSES, f"{each}; loss = loss.mean()"))
    assert found.passes, found.reason
    assert found.reason.startswith("has the losses of its trial to the last bit, in 8 steps")


@pytest.mark.proof
def test_another_loss_is_found(accepted):
    found = accepted("plain/train_digits.py", ("lr=args.lr", "lr=args.lr * 1.01"))
    assert not found.passes
    assert "has another loss in step " in found.reason


@pytest.mark.proof
def test_a_patched_file_that_fails_says_how(accepted):
    found = accepted("plain/train_digits.py", ("optimizer.step()", "optimizer.steps()"))
    assert not found.passes
    assert "fails: AttributeError: " in found.reason


@pytest.mark.proof
def test_long_steps_are_timed_while_their_losses_are_compared(accepted):
    """Planted: the ninth step fails, and nobody takes it."""
    counted = "torch.steps = getattr(torch, 'steps', 0) + 1; assert torch.steps < 9; __import__('time').sleep(0.2)"
    found = accepted("plain/train_digits.py", own_change=("optimizer.step()", f"{counted}; optimizer.step()"))
    assert found.passes, found.reason
    assert "in 8 steps; a step takes 2" in found.reason


@pytest.mark.proof
def test_a_slower_step_is_found(accepted):
    found = accepted("plain/train_digits.py", ("optimizer.step()", "optimizer.step(); __import__('time').sleep(0.3)"))
    assert not found.passes
    assert "takes 3" in found.reason
    assert "ms in its trial" in found.reason
