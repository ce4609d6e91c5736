"""The doctor's fixes as techniques of scripts: which there are, what they write, what they refuse, and one accepted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import pytest

from hasten.doctor.rules import ALL
from hasten.errors import PlanError
from hasten.facts.choice import Choice, Preserves
from hasten.facts.finding import Severity
from hasten.facts.plan import Plan
from hasten.facts.plan_file import plan_from_toml, plan_to_toml
from hasten.facts.scripts.script_places import ScriptPlaces, SourceCall
from hasten.scripts.edits.edited_source import edited_source
from hasten.scripts.edits.patch import patched_files
from hasten.scripts.edits.places import places_of
from hasten.scripts.edits.technique_edits import edits_of
from hasten.scripts.proving.acceptance import PatchedScript
from hasten.scripts.running.program import Program
from hasten.scripts.techniques import OF_SCRIPTS
from hasten.scripts.techniques.doctor_fixes import RULES, findings
from hasten.scripts.trials.script_arms import observe, script_arms
from hasten.tuning.search.candidates import plan_of
from hasten.tuning.trials.other_programs import OtherPrograms

FILE = "train.py"
SCRIPT = dedent('''\
    """Trains."""
    import numpy as np
    import torch
    from torch.nn.functional import cross_entropy

    torch.autograd.set_detect_anomaly(True)
    torch.backends.cudnn.benchmark = False
    torch.set_float32_matmul_precision("highest")


    def rows_of(images, order):
        return torch.tensor([images[each] for each in order])  # slow


    def train(model, optimizer, rng, epochs):
        images = np.zeros((90, 4))
        losses, outputs, total = [], [], 0.0
        for n in range(epochs):
            order = rng.permutation(90)
            x = rows_of(np.zeros((90, 4)), order).cuda()
            y = torch.tensor(images[:9] + 1)
            mask = torch.zeros(3).cuda()
            output = model(x)
            loss = cross_entropy(output, y)
            optimizer.zero_grad(set_to_none=False)
            loss.backward()
            optimizer.step()
            losses.append(loss)
            outputs.append(output.softmax(1))
            total += loss.item()
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
        return total / epochs


    def train_by_loader(model, optimizer, data):
        loader = torch.utils.data.DataLoader(data, pin_memory=True)
        for x, y in loader:
            cross_entropy(model(x.to("cuda")), y).backward()
            optimizer.step()
''')
WRITTEN = {
    "fix_anomaly_detection": [("set_detect_anomaly(True)", "set_detect_anomaly(False)")],
    "fix_benchmark": [("benchmark = False", "benchmark = True")],
    "fix_blocking_transfer": [('x.to("cuda")', 'x.to("cuda", non_blocking=True)')],
    "fix_cache_emptied": [("        torch.cuda.empty_cache()\n", "")],
    "fix_gradients_zeroed": [("set_to_none=False", "")],
    "fix_graph_kept": [("append(loss)", "append(loss.detach())")],
    "fix_list_of_arrays": [("[images[each] for each in order]", "np.array([images[each] for each in order])")],
    "fix_made_on_host": [("torch.zeros(3).cuda()", 'torch.zeros(3, device="cuda")')],
    "fix_outputs_kept": [("output.softmax(1)", "output.softmax(1).detach()")],
    "fix_read_every_step": [("loss.item()", "loss.detach().double()"), ("return total", "return float(total)")],
    "fix_synchronized": [("        torch.cuda.synchronize()\n", "")],
    "fix_tensor_copied": [("torch.tensor(images[:9] + 1)", "torch.as_tensor(images[:9] + 1)")],
    "fix_tf32_off": [('"highest"', '"high"')],
}


def places_in(source: str, device: str = "cuda") -> ScriptPlaces:
    found = findings(source, FILE)
    return ScriptPlaces(script=FILE, sources={}, device=device, optimizers=(), findings=found)


def edited(places: ScriptPlaces, source: str, *techniques: str) -> str:
    choices = [Choice(technique=each, value=True) for each in techniques]
    return edited_source(source, edits_of(choices, places, lambda file: source))


def test_every_fix_for_speed_is_a_technique_and_none_that_corrects_a_training():
    assert {*RULES} == {*WRITTEN} <= {each.name for each in OF_SCRIPTS}
    for rule in ALL:
        for_speed = rule.preserves is not None
        assert not (for_speed and (rule.safety is None or rule.severity in (Severity.WRONG, Severity.STYLE))), rule.name
    own = ("loader_not_pinned", "optimizer_not_fused", "workers_not_persistent")
    assert not {f"fix_{name}" for name in own} & {*RULES}


def test_a_technique_claims_what_its_rule_does():
    for technique in OF_SCRIPTS:
        if technique.name in RULES:
            assert technique.preserves is RULES[technique.name].preserves
    claims = {each.name: each.preserves for each in OF_SCRIPTS}
    assert claims["fix_list_of_arrays"] is Preserves.BITS
    assert claims["fix_benchmark"] is Preserves.ROUNDING


@pytest.mark.parametrize("technique", WRITTEN)
def test_a_fix_is_written_at_its_place_and_nowhere_else(technique):
    expected = SCRIPT
    for before, after in WRITTEN[technique]:
        assert expected.count(before) == 1
        expected = expected.replace(before, after)
    assert edited(places_in(SCRIPT), SCRIPT, technique) == expected


def test_all_fixes_can_be_made_together():
    expected = SCRIPT
    for before, after in (each for pairs in WRITTEN.values() for each in pairs):
        expected = expected.replace(before, after)
    assert edited(places_in(SCRIPT), SCRIPT, *RULES) == expected


def test_what_costs_nothing_on_a_cpu_is_refused_there():
    places = places_in(SCRIPT, device="cpu")
    with pytest.raises(PlanError, match="H201 costs nothing on a CPU"):
        edited(places, SCRIPT, "fix_read_every_step")
    assert "np.array([" in edited(places, SCRIPT, "fix_list_of_arrays")


def test_a_script_without_the_finding_is_refused():
    source = SCRIPT.replace("  # slow", "  # hasten: ignore[H208]")
    for text in (source, "print()\n"):
        with pytest.raises(PlanError, match="the doctor finds no H208 in the script"):
            edited(places_in(text), text, "fix_list_of_arrays")


def test_a_plan_keeps_places_alone_and_the_fix_is_found_again_in_the_source():
    places = places_in(SCRIPT)
    plan = replace(plan_of([Choice(technique="fix_list_of_arrays", value=True)]), script=places)
    text = plan_to_toml(plan)
    assert "np.array" not in text
    assert plan_from_toml(text).script == places
    elsewhere = SourceCall(file=FILE, line=6, column=0, end_line=6, end_column=39)
    forged = replace(places, findings={"fix_list_of_arrays": (elsewhere,)})
    with pytest.raises(PlanError, match="finds no H208 at line 6"):
        edited(forged, SCRIPT, "fix_list_of_arrays")


WINDOWS = dedent("""\
    import numpy as np
    import torch
    from torch.utils.data import DataLoader, Dataset


    class Windows(Dataset):
        def __init__(self, signal, length):
            self.signal = np.asarray(signal, dtype=np.float32)
            self.length = length

        def __len__(self):
            return len(self.signal) - 2 * self.length

        def __getitem__(self, index):
            rows = [self.signal[index + lag : index + lag + self.length] for lag in range(self.length)]
            return torch.tensor(rows), torch.tensor(self.signal[index + 2 * self.length])


    torch.manual_seed(0)
    loader = DataLoader(Windows(np.sin(np.arange(500) / 9), 64), batch_size=32, shuffle=True)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64 * 64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for epoch in range(4):
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x)[:, 0], y).backward()
            optimizer.step()
""")


@pytest.mark.proof
@pytest.mark.filterwarnings("ignore:Creating a tensor from a list")
def test_a_slow_list_of_arrays_is_patched_and_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    own, place = tmp_path / "own", tmp_path / "place"
    own.mkdir()
    place.mkdir()
    (own / FILE).write_text(WINDOWS)
    monkeypatch.chdir(own)
    program = Program(name=FILE)
    seen = observe(program)
    arms = script_arms(program, seen, place, OtherPrograms(None))
    with arms.start("any", Plan()) as arm:
        proposed = [each["technique"] for each in arm.ask("survey")["proposed"]]
    assert [each for each in proposed if each in RULES] == ["fix_list_of_arrays"]
    plan = replace(plan_of([Choice(technique="fix_list_of_arrays", value=True)]), script=places_of(seen, program))
    files = patched_files(plan, own)
    assert files[0].after.decode() == WINDOWS.replace("torch.tensor(rows)", "torch.tensor(np.array(rows))")
    patched = PatchedScript(program=program, seen=seen, plan=plan, files=files, place=place)
    found = patched.accepted(arms, lambda doing: None)
    assert found.passes, found.reason
