"""What is seen in scripts that train several modules, or parts of one, or skip updates."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from textwrap import dedent

import pytest
import torch
from torch import nn

from hasten.facts.scripts.seen import Seen
from hasten.report.script_sentence import found_lines
from hasten.scripts.observing.passes import Passes
from hasten.scripts.running.notebook import place_in
from hasten.scripts.running.program import Program
from hasten.scripts.trials.script_arms import observe

DISCRIMINATOR_FIRST = """
    import torch
    from torch import nn

    netG = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 4))
    netD = nn.Linear(4, 1)
    optimizerD = torch.optim.Adam(netD.parameters())
    optimizerG = torch.optim.Adam(netG.parameters())
    criterion = nn.BCEWithLogitsLoss()
    for step in range(10):
        netD.zero_grad()
        errD_real = criterion(netD(torch.randn(8, 4)), torch.ones(8, 1))
        errD_real.backward()
        fake = netG(torch.randn(8, 2))
        errD_fake = criterion(netD(fake.detach()), torch.zeros(8, 1))
        errD_fake.backward()
        optimizerD.step()
        netG.zero_grad()
        errG = criterion(netD(fake), torch.ones(8, 1))
        errG.backward()
        optimizerG.step()
"""
ACTOR_AND_CRITIC = """
    import torch
    from torch import nn

    class Agent(nn.Module):
        def __init__(self):
            super().__init__()
            self.critic = nn.Linear(4, 1)
            self.actor = nn.Linear(4, 2)
            self.critic.bias.requires_grad_(False)
        def act(self, x):
            return torch.distributions.Categorical(logits=self.actor(x)), self.critic(x)

    agent = Agent()
    optimizer = torch.optim.Adam(agent.parameters(), lr=1e-3)
    for iteration in range(1, 4):
        for epoch in range(2):
            for start in range(0, 64, 16):
                chances, value = agent.act(torch.randn(16, 4))
                loss = value.pow(2).mean() - chances.entropy().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
"""
EVALUATES_FIRST = """
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
    train, valid = DataLoader(data, batch_size=8), DataLoader(data, batch_size=4)
    mean = torch.stack([rows.mean() for rows, _ in train]).mean()
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.eval()
    print(sum(float((model(rows) - labels).pow(2).mean()) for rows, labels in valid))
    model.train()
    for epoch in range(3):
        for rows, labels in train:
            optimizer.zero_grad()
            (model(rows - mean) - labels).pow(2).mean().backward()
            optimizer.step()
"""
SKIPS_UPDATES = """
    import torch
    from torch.utils.data import DataLoader

    model = torch.nn.Linear(3, 1)
    torch.nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=4096.0)
    for epoch in range(3):
        for batch in DataLoader(torch.full((40, 3), 1e36), batch_size=4):
            optimizer.zero_grad()
            loss = model(batch).sum()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
"""
ACCUMULATES_WITHOUT_LOADER = """
    import torch

    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(40):
        model(torch.randn(4, 3)).sum().backward()
        if (step + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
"""
ACCUMULATES_FROM_THE_FIRST_BATCH = """
    import torch
    from torch.utils.data import DataLoader

    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(3):
        for number, batch in enumerate(DataLoader(torch.randn(40, 3), batch_size=2)):
            model(batch).sum().backward()
            if number % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()
"""
TRAINS_ITS_ACTOR_IN_EVERY_SECOND_STEP = """
    import torch
    from torch import nn

    actor, critic = nn.Linear(4, 2), nn.Linear(6, 1)
    critic_optimizer = torch.optim.Adam(critic.parameters())
    actor_optimizer = torch.optim.Adam(actor.parameters())
    for step in range(10):
        action = actor(torch.randn(1, 4))
        seen, target = torch.randn(8, 4), torch.randn(8, 1)
        error = critic(torch.cat([seen, action.detach().expand(8, 2)], 1)) - target
        loss = error.pow(2).mean()
        critic_optimizer.zero_grad()
        loss.backward()
        critic_optimizer.step()
        if step % 2:
            value = critic(torch.cat([seen, actor(seen)], 1)).mean()
            actor_optimizer.zero_grad()
            (-value).backward()
            actor_optimizer.step()
"""


def seen_in(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Seen:
    (folder / "train.py").write_text(dedent(text))
    monkeypatch.chdir(folder)
    return observe(Program(name="train.py"))


def test_the_model_is_the_one_whose_optimizer_counts_the_steps(tmp_path, monkeypatch):
    seen = seen_in(DISCRIMINATOR_FIRST, tmp_path, monkeypatch)
    assert (seen.model.kind, seen.model.names) == ("Linear", ("netD",))
    assert seen.backward[0].line == 16
    assert sorted((each.forward.line, each.backward.line) for each in seen.windows) == [(12, 13), (14, 16), (19, 20)]
    assert seen.length.steps == 10


def test_a_call_of_the_model_whose_output_no_loss_needs_is_not_of_its_step():
    agent = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(agent.parameters())
    passes, found = Passes(), None
    with ExitStack() as resources:
        passes.start(resources)
        for step in range(3):
            action = agent(torch.ones(1, 3)).argmax()
            if step:
                loss = agent(torch.ones(4, 3))[:, action].sum()
                loss.backward()
                found = passes.step_of(optimizer, passes.count - 1)
    assert found is not None
    [window] = found.windows
    assert window.backward.line - window.forward.line == 1
    assert found.forward.inputs == (((4, 3), "torch.float32"),)


def test_a_pass_of_every_second_step_is_seen(tmp_path, monkeypatch):
    seen = seen_in(TRAINS_ITS_ACTOR_IN_EVERY_SECOND_STEP, tmp_path, monkeypatch)
    assert sorted((each.forward.line, each.backward.line) for each in seen.windows) == [(11, 14), (17, 19)]


@pytest.mark.parametrize(("enabled", "autocast"), [(True, "enabled"), (False, "disabled")])
def test_autocast_that_an_option_disables_is_seen(enabled, autocast):
    passes, model = Passes(), nn.Linear(3, 1)
    with ExitStack() as resources:
        passes.start(resources)
        with torch.autocast("cpu", enabled=False):
            pass
        model(torch.ones(2, 3)).sum().backward()
        assert not passes.autocast
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            loss = model(torch.ones(2, 3)).sum()
        loss.backward()
    assert passes.autocast == autocast


@pytest.mark.filterwarnings("ignore:.*CUDA is not available")
def test_autocast_of_another_device_leaves_that_of_the_model_to_the_plan():
    passes, model = Passes(), nn.Linear(3, 1)
    with ExitStack() as resources:
        passes.start(resources)
        with torch.autocast("cuda", enabled=False):
            model(torch.ones(2, 3)).sum().backward()
    assert not passes.autocast


def test_a_module_whose_parts_are_called_is_the_model(tmp_path, monkeypatch):
    seen = seen_in(ACTOR_AND_CRITIC, tmp_path, monkeypatch)
    model = seen.model
    assert (model.kind, model.names, model.parameters, model.trained) == ("Agent", ("agent",), 15, 14)
    assert "Agent, 15 parameters, of which 14 are trained (" in dict(found_lines(seen, place_in))["model"]
    assert seen.length.steps == 24


def test_updates_that_a_scaler_skips_do_not_shorten_the_training(tmp_path, monkeypatch):
    seen = seen_in(SKIPS_UPDATES, tmp_path, monkeypatch)
    assert (seen.length.steps, seen.length.epochs) == (30, 3)


@pytest.mark.parametrize(
    ("script", "steps"),
    [(ACCUMULATES_WITHOUT_LOADER, 10), (ACCUMULATES_FROM_THE_FIRST_BATCH, 15)],
    ids=["turns", "batches"],
)
def test_turns_that_accumulate_gradients_are_no_steps(script, steps, tmp_path, monkeypatch):
    assert seen_in(script, tmp_path, monkeypatch).length.steps == steps


def test_a_loader_that_is_read_before_the_training_is_not_the_one_that_is_trained_on(tmp_path, monkeypatch):
    seen = seen_in(EVALUATES_FIRST, tmp_path, monkeypatch)
    assert seen.loader is not None
    assert (seen.loader.batch_size, seen.length.steps) == (8, 24)
