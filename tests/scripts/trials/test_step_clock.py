"""What the clock of a script's steps knows of its loaders, and of a device that computes later."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from hasten.facts.scripts.seen import Length, Seen, SeenModel
from hasten.scripts.trials.step_clock import StepClock

MODEL = SeenModel(kind="Net", parameters=9, trained=9, device="cpu", names=(), images=(), inputs=(), called=())
WITHOUT_LOADER = Seen(
    loader=None,
    model=MODEL,
    optimizers=(),
    main=0,
    backward=(),
    windows=(),
    autocast="",
    length=Length(steps=20, epochs=None),
    updates=4,
    seconds=1.0,
)


def test_a_script_without_a_loader_has_no_other_loaders_of_its_line():
    assert StepClock(seen=WITHOUT_LOADER, at_update=lambda: None).made_alike == ()


AHEAD_OF_ITS_DEVICE = """
from dataclasses import replace
from types import SimpleNamespace
import torch
from hasten.scripts.trials import step_clock
from test_step_clock import MODEL, WITHOUT_LOADER

host = device = 0.0  # by which second each has done what it has to do

def synchronize():
    global host
    host = max(host, device)

step_clock.time = SimpleNamespace(perf_counter=lambda: host)
torch.cuda.is_initialized, torch.cuda.synchronize = lambda: True, synchronize
seen = replace(WITHOUT_LOADER, model=replace(MODEL, device="cuda"))
clock = step_clock.StepClock(seen=seen, at_update=lambda: clock.resume())
clock.start()
clock.begin()
net = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

def step():
    global host, device
    host += 1
    device = max(device, host) + 10
    net(torch.ones(1)).sum().backward()
    optimizer.step()

step()
step()
clock.settle()
clock.resume()
clock.forget_intervals()
for _ in range(4):
    step()
clock.drain()
print(sum(clock.intervals), clock.usual, clock.since_last)
clock.forget_intervals()
step()
net.eval()
step()
print(clock.intervals, clock.interruptions)
"""


def test_steps_that_run_ahead_of_their_device_take_its_seconds():
    words = [sys.executable, "-c", AHEAD_OF_ITS_DEVICE]
    done = subprocess.run(words, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["41.0 10.25 0.0", "[11.0] [11.0]"], done.stderr
