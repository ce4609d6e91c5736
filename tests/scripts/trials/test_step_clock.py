"""What the clock of a script's steps knows of its loaders."""

from __future__ import annotations

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
