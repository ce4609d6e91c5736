"""What is seen in training scripts of many styles: their model, optimizers, loader, and how many steps they take."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from hasten.facts.scripts.seen import Seen, as_table, seen_of
from hasten.scripts.running.program import Program
from hasten.scripts.trials.script_arms import observe
from hasten.tuning.trials.trial_outcome import ArmFailed
from support.scripts.programs import CORPUS, PROGRAMS

REFUSED = {
    "plain/from_scratch.py": "no optimizer of torch made a step",
    "steps/maml_sine.py": "without backward",
}
LENGTH_BY_LOOPS = {
    "steps/accumulate.py": 89,  # its last window of an epoch has fewer batches
    "odd/early_stop.py": 4000,  # it stops after 569
    "odd/swallow.py": 400,  # 25 of them raise
}
"""Steps as the loops say, where the script takes others."""
STEPPED = {"steps/sam.py": ["SGD"]}
"""Optimizers that are stepped, where others are made too."""
FEW = ("plain/train_digits.py", "plain/no_loader.py", "steps/gan_ring.py", "odd/forever.py", "plain/from_scratch.py")


def observed(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Seen:
    program = PROGRAMS[name]
    for needed in program.needs.split():
        pytest.importorskip(needed)
    top, *rest = Path(name).parts
    if top in ("package", "project"):
        shutil.copytree(CORPUS / top, folder / "own")
        file = str(Path(*rest))
    else:
        (folder / "own").mkdir()
        shutil.copy(CORPUS / name, folder / "own")
        file = rest[-1]
    monkeypatch.chdir(folder / "own")
    return observe(Program(name=program.module or file, is_module=program.module is not None))


@pytest.mark.parametrize(
    "name", [each if each in FEW else pytest.param(each, marks=pytest.mark.proof) for each in PROGRAMS]
)
def test_a_script_is_seen_as_it_trains(name, tmp_path, monkeypatch):
    if name in REFUSED:
        with pytest.raises(ArmFailed, match=REFUSED[name]):
            observed(name, tmp_path, monkeypatch)
        return
    seen, program = observed(name, tmp_path, monkeypatch), PROGRAMS[name]
    assert seen.model.kind in program.models.split()
    assert [each.kind for each in seen.optimizers] == STEPPED.get(name, program.optimizers.split())
    assert (seen.loader is None) == (program.loaders == 0)
    assert seen.length.steps == LENGTH_BY_LOOPS.get(name, program.updates)
    assert seen_of(as_table(seen)) == seen
