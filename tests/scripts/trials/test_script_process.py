"""The process of a trial is to the script what a process of its own is, at every start."""

from __future__ import annotations

import platform
import shutil
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from bench.page_faults import page_faults_of_children

from hasten.facts.choice import Choice
from hasten.facts.plan import Plan
from hasten.scripts.running.program import Program
from hasten.scripts.trials.script_arms import observe, script_arms
from hasten.tuning.search.candidates import plan_of
from hasten.tuning.trials.arms import Arms
from hasten.tuning.trials.other_programs import OtherPrograms
from hasten.tuning.trials.search_key import key_of
from hasten.tuning.trials.trial_outcome import ArmFailed
from support.scripts.programs import CORPUS

CHANGES_ITS_PROCESS = """
    import multiprocessing, os, sys
    import torch
    import settings
    from torch.utils.data import DataLoader

    if settings.are_read or "TRAINED" in os.environ or os.path.exists("runs/weights.pt"):
        sys.exit("nothing is left to do")
    assert torch.get_default_dtype() == torch.float32
    print("starts")
    settings.are_read = True
    sys.stdout = open("log.txt", "w")
    os.environ["TRAINED"] = "1"
    multiprocessing.set_start_method("fork")
    os.makedirs("runs")
    os.chdir("runs")
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(torch.ones(24, 3), batch_size=4, num_workers=1)
    for batch in loader:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
    torch.save(model.state_dict(), "weights.pt")
    torch.set_grad_enabled(False)
    torch.set_default_dtype(torch.float16)
    sys.stdout.close()
    sys.exit(0)
"""
REGISTERS = """
    import shutil
    import torch

    shutil.register_unpack_format("mine", [".mine"], print)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(6):
        optimizer.zero_grad()
        model(torch.ones(4, 3)).sum().backward()
        optimizer.step()
"""


EVALUATES_AFTER_EACH_STEP = """
    import torch
    from torch.utils.data import DataLoader

    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(torch.ones(24, 3), batch_size=4, shuffle=True)
    for step in range(20):
        model.train()
        batch = next(iter(loader))
        optimizer.zero_grad()
        model(batch).backward(torch.ones(4, 2))
        optimizer.step()
        model.eval()
"""
EVALUATES_WITHIN_EPOCHS = """
    import torch
    from torch.utils.data import DataLoader

    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    rows = torch.ones(96, 3)
    for epoch in range(4):
        for number, batch in enumerate(DataLoader(rows, batch_size=4), 1):
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()
            if number % 8 == 0 and number < 24:
                model.eval()
                for batch in DataLoader(rows, batch_size=48):
                    model(batch)
                model.train()
"""
EVALUATES_BEFORE_STEPS = """
    import torch
    from torch.utils.data import DataLoader

    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    rows = torch.ones(96, 3)
    for epoch in range(4):
        for number, batch in enumerate(DataLoader(rows, batch_size=4)):
            if number % 8 == 0 and number:
                model.eval()
                for held in DataLoader(rows, batch_size=48):
                    model(held)
                model.train()
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()
"""
READS_A_LOADER_TO_EVALUATE = """
    import torch
    from torch.utils.data import DataLoader

    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    rows = torch.ones(96, 3)
    for step in range(1, 200):
        optimizer.zero_grad()
        model(rows[:4]).sum().backward()
        optimizer.step()
        if step % 7 == 0:
            for held in DataLoader(rows, batch_size=48):
                model(held)
"""
DRAWS_FROM_ITS_OWN_GENERATOR = """
    import numpy
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Noisy(Dataset):
        def __init__(self):
            self.generator = numpy.random.default_rng(0)
        def __len__(self):
            return 24
        def __getitem__(self, index):
            return torch.full((3,), self.generator.random(), dtype=torch.float32)

    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(2):
        for batch in DataLoader(Noisy(), batch_size=4):
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()
"""
SKIPS_STEPS = """
    import torch

    model = torch.nn.Linear(3, 1)
    torch.nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=4096.0)
    for step in range(40):
        optimizer.zero_grad()
        loss = model(torch.full((2, 3), 1e38 if step % 3 == 2 else 1.0)).sum()  # a finite loss
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""


MAKES_LARGE_TENSORS = """
    import torch

    torch.manual_seed(0)
    model = torch.nn.Linear(1, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    rows = torch.ones(1 << 20, 1)
    for step in range(40):
        optimizer.zero_grad()
        model(rows).relu().mean().backward()  # tensors of 64 MiB
        optimizer.step()
"""
CROSS_VALIDATES = """
    import torch
    from torch.utils.data import DataLoader, Subset

    data = torch.ones(24, 3)
    for fold in range(40):
        rows = [each for each in range(24) if each % 40 != fold]
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for epoch in range(2):
            for batch in DataLoader(Subset(data, rows), batch_size=12):
                optimizer.zero_grad()
                model(batch).sum().backward()
                optimizer.step()
    raise SystemExit("its steps were over")
"""


def arms_of(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch, **modules: str) -> Arms:
    users, place = folder / "users", folder / "place"
    users.mkdir()
    place.mkdir()
    for name, source in {"train": text, **modules}.items():
        (users / f"{name}.py").write_text(dedent(source))
    monkeypatch.chdir(users)
    program = Program(name="train.py")
    return script_arms(program, observe(program), place, OtherPrograms(None))


def test_a_script_that_changes_its_process_starts_again_as_it_started_first(tmp_path, monkeypatch):
    arms = arms_of(CHANGES_ITS_PROCESS, tmp_path, monkeypatch, settings="are_read = False")
    with arms.start("plain", Plan()) as arm:
        first, second, third = (arm.ask("window", steps=4)["losses"] for _ in range(3))
    assert second[1:] == third[1:] == first  # it seeds nothing; its sixth step is in the next window


def test_a_script_whose_registration_fails_at_its_second_start_is_refused(tmp_path, monkeypatch):
    says = r"cannot be started twice in one process: RegistryError: \.mine is already registered"
    with arms_of(REGISTERS, tmp_path, monkeypatch).start("plain", Plan()) as arm, pytest.raises(ArmFailed, match=says):
        arm.ask("window", steps=10)


COUNTS_ITS_STARTS = """
    import sys, torch
    with open(sys.argv[1], "a") as file:
        file.write("started\\n")
    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(48, 3), torch.randn(48, 1))
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in torch.utils.data.DataLoader(data, batch_size=2):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
"""


def test_the_end_of_a_script_is_measured_without_another_start(tmp_path, monkeypatch):
    starts, users = tmp_path / "starts.txt", tmp_path / "users"
    users.mkdir()
    (users / "train.py").write_text(dedent(COUNTS_ITS_STARTS))
    monkeypatch.chdir(users)
    program = Program(name="train.py", options=(str(starts),))
    arms = script_arms(program, observe(program), tmp_path, OtherPrograms(None))
    starts.write_text("")
    with arms.start("plain", Plan()) as arm:
        arm.window(5)
        assert arm.ask("turn")["seconds"] >= 0.0
        assert starts.read_text() == "started\n"
        arm.window(5)
        assert starts.read_text() == "started\nstarted\n"


def test_the_steps_of_every_fold_are_counted_and_timed(tmp_path, monkeypatch):
    with arms_of(CROSS_VALIDATES, tmp_path, monkeypatch).start("plain", Plan()) as arm:
        losses = arm.ask("train", seed=0, steps=10, metric=None, seconds=60.0)["losses"]
    assert len(losses) == 10  # a fold has 4


def test_what_is_done_after_every_step_is_part_of_the_step(tmp_path, monkeypatch):
    with arms_of(EVALUATES_AFTER_EACH_STEP, tmp_path, monkeypatch).start("plain", Plan()) as arm:
        windows = [arm.window(5) for _ in range(2)]
        assert arm.ask("turn")["seconds"] == 0.0  # no epoch of it can be ended: it draws its batches by next()
        losses = arm.ask("train", seed=0, steps=3, metric=None, seconds=60.0)["losses"]
    assert [window.steps for window in windows] == [5, 5]
    assert len(losses) == 3


def test_what_is_evaluated_within_an_epoch_and_between_two_is_told_apart(tmp_path, monkeypatch):
    with arms_of(EVALUATES_WITHIN_EPOCHS, tmp_path, monkeypatch).start("plain", Plan()) as arm:
        arm.window(45)
    assert len(arm.turns) == 2  # an epoch has 24 steps, of which three are not usual
    assert len(arm.interruptions) == 4  # behind steps 8 and 16 of the first two epochs


@pytest.mark.proof
def test_an_evaluation_before_a_step_is_no_epoch(tmp_path, monkeypatch):
    with arms_of(EVALUATES_BEFORE_STEPS, tmp_path, monkeypatch).start("plain", Plan()) as arm:
        arm.window(45)
        assert arm.ask("turn", 60.0)["seconds"] < 60  # the loader of the steps is the one that ends
    assert (len(arm.turns), len(arm.interruptions)) == (2, 4)


@pytest.mark.proof
def test_an_evaluation_by_the_only_loader_is_no_epoch(tmp_path, monkeypatch):
    with arms_of(READS_A_LOADER_TO_EVALUATE, tmp_path, monkeypatch).start("plain", Plan()) as arm:
        arm.window(30)
    assert (arm.turns, len(arm.interruptions)) == ([], 4)


def test_steps_that_a_scaler_skips_are_not_counted(tmp_path, monkeypatch):
    with arms_of(SKIPS_STEPS, tmp_path, monkeypatch).start("plain", Plan()) as arm:
        losses = arm.ask("train", seed=0, steps=4, metric=None, seconds=60.0)["losses"]
    assert len(losses) == 4


@pytest.mark.proof
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs the GNU C library")
def test_page_faults_are_counted_and_are_gone_where_the_plan_keeps_freed_memory(tmp_path, monkeypatch):
    arms, faults, losses = arms_of(MAKES_LARGE_TENSORS, tmp_path, monkeypatch), list[int](), list[list[float]]()
    for plan in (Plan(), plan_of([Choice(technique="allocator", value="keep_freed_memory")])):
        with arms.start("any", plan) as arm:
            assert "allocator" in [each["technique"] for each in arm.ask("survey")["proposed"]]
            losses.append(arm.ask("window", steps=8)["losses"])
            before = page_faults_of_children()
            arm.window(4)
            faults.append(page_faults_of_children() - before)
            assert plan.choices or arm.ask("budget", steps=4)["around"]["fault_seconds"] > 0
    assert faults[1] < faults[0] / 20  # a page is 4 KiB, or more where the system maps many at once
    assert losses[0] == losses[1]


def surveyed(folder: Path, *options: str) -> dict[str, Any]:
    program = Program(name="train.py", options=options)
    arms = script_arms(program, observe(program), folder, OtherPrograms(None))
    with arms.start("plain", Plan()) as arm:
        arm.window(2)
        return arm.ask("survey")


def test_workers_that_would_repeat_the_data_sets_own_random_numbers_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(dedent(DRAWS_FROM_ITS_OWN_GENERATOR))
    answer = surveyed(tmp_path)
    assert "a generator of its own, generator" in answer["refused"]["loader_workers"]
    assert "loader_workers" not in [each["technique"] for each in answer["proposed"]]
    assert surveyed(tmp_path, "--seed", "1")["sources"] != answer["sources"]  # no trial of other options is continued


def test_a_folder_that_is_moved_keeps_the_trials_of_its_script(tmp_path, monkeypatch):
    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    (before / "train.py").write_text(dedent(DRAWS_FROM_ITS_OWN_GENERATOR))
    monkeypatch.chdir(before)
    key = key_of(surveyed(tmp_path), {})
    monkeypatch.chdir(before.rename(after))
    assert key_of(surveyed(tmp_path), {}) == key


@pytest.mark.proof
def test_a_script_without_a_loader_is_told_why_workers_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copy(CORPUS / "plain/no_loader.py", "train.py")
    refused = surveyed(tmp_path)["refused"]
    reasons = {refused[each] for each in ("loader_workers", "persistent_workers", "prefetch")}
    assert reasons == {"the steps read no DataLoader"}
