"""Options of a script's command line: a patch changes their defaults, and names those that it disables."""

from __future__ import annotations

import ast
import sys
from argparse import ArgumentParser, BooleanOptionalAction

import pytest

from hasten.facts.choice import Choice, Value
from hasten.facts.scripts.script_places import ScriptPlaces, SourceCall, TrainerPlace
from hasten.scripts.edits.edited_source import edited_source
from hasten.scripts.edits.script_options import given_names, with_own_settings, without_effect
from hasten.scripts.edits.source_places import place_of
from hasten.scripts.edits.technique_edits import edits_of

WORKERS = 'parser.add_argument("-j", "--workers", type=int, default=0)'
LOADER = "loader = DataLoader(data, num_workers=args.workers)"


def script(option: str, use: str) -> str:
    parser = (
        f"import argparse\nimport torch\n\nparser = argparse.ArgumentParser()\n{option}\nargs = parser.parse_args()\n"
    )
    return f"{parser}{use}\n"


def call_of(source: str, name: str) -> SourceCall | None:
    calls = (each for each in ast.walk(ast.parse(source)) if isinstance(each, ast.Call))
    return next((place_of(each, "train.py") for each in calls if ast.unparse(each.func) == name), None)


def edited(source: str, *choices: tuple[str, Value], kind: str = "", command: str = "", device: str = "cuda") -> str:
    trainer = call_of(source, kind.rpartition(".")[2]) if kind else None
    places = ScriptPlaces(
        script="train.py",
        sources={},
        device=device,
        optimizers=(),
        loader=call_of(source, "DataLoader"),
        trainer=trainer and TrainerPlace(kind=kind, call=trainer, precision="", optimizer="AdamW"),
    )
    made = [Choice(technique=name, value=value) for name, value in choices]
    edits = edits_of(made, places, lambda file: source)
    return edited_source(source, with_own_settings(source, edits, given_names(command.split())))


PRECISION = 'parser.add_argument("--precision", type=str, default=None, choices=["no", "bf16"], help="a")'
STRING = PRECISION.replace(', choices=["no", "bf16"]', "")
SWITCH = 'parser.add_argument("--bf16", action="store_true", help="lower precision")'
CHANGED = {
    "accelerate": (
        ("accelerate.Accelerator", "precision", "bf16"),
        (PRECISION, "Accelerator(mixed_precision=args.precision)"),
        PRECISION.replace("None", '"bf16"'),
    ),
    "lightning": (
        ("lightning.Trainer", "precision", "bf16"),
        (STRING, "Trainer(precision=args.precision)"),
        STRING.replace("None", '"bf16-mixed"'),
    ),
    "transformers": (
        ("transformers.TrainingArguments", "precision", "bf16"),
        (SWITCH, "TrainingArguments(bf16=args.bf16)"),
        SWITCH.replace('"store_true", ', "argparse.BooleanOptionalAction, ").replace('n")', 'n", default=True)'),
    ),
    "loader": (("", "loader_workers", 2), (WORKERS, LOADER), WORKERS.replace("=0", "=2")),
    "no default": (
        ("", "loader_workers", 2),
        (WORKERS.replace(", default=0", ""), LOADER),
        WORKERS.replace("=0", "=2"),
    ),
    "threads": (
        ("", "threads", 1),
        (WORKERS, "torch.set_num_threads(args.workers)"),
        WORKERS.replace("=0", "=1"),
    ),
}


@pytest.mark.parametrize("name", CHANGED)
def test_the_default_of_an_option_is_changed_and_the_option_keeps_its_effect(name):
    (kind, technique, value), (option, use), after = CHANGED[name]
    before = script(option, use)
    assert edited(before, (technique, value), kind=kind) == script(after, use)
    assert without_effect(before, script(after, use)) == []


def test_a_switch_can_still_be_turned_off():
    parser = ArgumentParser()
    parser.add_argument("--bf16", action=BooleanOptionalAction, default=True)
    assert [parser.parse_args(words).bf16 for words in ([], ["--bf16"], ["--no-bf16"])] == [True, True, False]


DOUBTS = {
    "is on the command line": (WORKERS, LOADER, "--workers 0"),
    "is abbreviated there": (WORKERS, LOADER, "--wor=0"),
    "has its short name there": (WORKERS, LOADER, "-j0"),
    "is required": (WORKERS.replace("default=0", "required=True"), LOADER, ""),
    "is text": (WORKERS.replace("type=int, ", ""), LOADER, ""),
    "allows other values": (WORKERS.replace("default=0", "default=0, choices=[0, 1]"), LOADER, ""),
    "is defined twice": (f"{WORKERS}\n{WORKERS.replace('parser', 'other')}", LOADER, ""),
    "is set by the script": (WORKERS, f"args.workers = 0\n{LOADER}", ""),
    "has another default": (f"{WORKERS}\nparser.set_defaults(workers=0)", LOADER, ""),
}


@pytest.mark.parametrize("name", DOUBTS)
def test_where_the_default_does_not_decide_the_call_is_changed_and_the_option_is_named(name):
    option, use, command = DOUBTS[name]
    before = script(option, use)
    after = edited(before, ("loader_workers", 2), command=command)
    assert after == script(option, use.replace("num_workers=args.workers", "num_workers=2"))
    assert without_effect(before, after) == ["--workers"]


def test_an_option_that_is_read_elsewhere_too_still_has_an_effect():
    before = script(WORKERS, f"{LOADER}\nprint(args.workers)")
    assert without_effect(before, edited(before, ("loader_workers", 2), command="-j 0")) == []


def test_without_workers_a_loader_still_runs():
    choices = ("loader_workers", 2), ("persistent_workers", True), ("prefetch", 4)
    source = edited(script(WORKERS, LOADER), *choices).replace(
        "import torch\n", "from torch.utils.data import DataLoader\n"
    )
    argv, sys.argv = sys.argv, ["train.py", "--workers", "0"]
    try:
        names = {"data": [1, 2]}
        exec(source, names)
    finally:
        sys.argv = argv
    assert [*map(int, names["loader"])] == [1, 2]
    assert "persistent_workers=args.workers > 0, prefetch_factor=4 if args.workers > 0 else None" in source


def test_a_setting_that_the_script_makes_later_is_changed_there():
    before = script("", "torch.set_num_threads(8)")
    assert edited(before, ("threads", 1)) == script("", "torch.set_num_threads(1)")


def test_a_statement_of_several_lines_behind_the_imports_stays_whole():
    choices = ("threads", 1), ("allocator", "keep_freed_memory")
    found = edited(script("", "torch.set_num_threads(8)"), *choices, device="cpu")
    assert (
        'hasattr(ctypes.CDLL(None), "mallopt"):\n    mallopt = ctypes.CDLL(None).mallopt\n    mallopt(-4, 0)' in found
    )
    assert "torch.set_num_threads(1)" in found


def test_a_setting_that_only_workers_or_some_runs_make_is_none_of_the_training():
    worker = "def start(number):\n    torch.set_num_threads(1)\n\nloader = DataLoader(data, worker_init_fn=start)"
    without_name = "loader = DataLoader(data, worker_init_fn=lambda number: torch.set_num_threads(1))"
    debugged = "if args.debug:\n    torch.set_num_threads(1)"
    in_line = "torch.set_num_threads(1) if args.debug else None"
    for use in (
        worker,
        without_name,
        debugged,
        in_line,
        f"with context:\n    {debugged.replace(chr(10), chr(10) + '    ')}",
    ):
        found = edited(script("", use), ("threads", 2))
        assert use in found
        assert "import torch\n\ntorch.set_num_threads(2)\n" in found


@pytest.mark.parametrize(
    ("parsed", "use"),
    [
        ("config: argparse.Namespace = parser.parse_args()", "config"),
        ("def read():\n    found = parser.parse_args()\n    return found\n\nconfig = read()", "config"),
        ("table = pd.read_csv(path, parse_dates=[0])\nargs = read()", "args"),
        ("config = parser.parse_args()\nmain(config)", "args"),
    ],
)
def test_options_are_known_by_the_names_they_are_assigned_to_and_by_usual_ones(parsed, use):
    before = f"import argparse\n\nparser = argparse.ArgumentParser()\n{WORKERS}\n{parsed}\n"
    before += LOADER.replace("args", use) + "\n"
    assert edited(before, ("loader_workers", 2)) == before.replace("default=0", "default=2")


def test_a_value_of_another_object_is_no_option():
    before = script(WORKERS, LOADER.replace("args.", "settings."))
    assert edited(before, ("loader_workers", 2)) == before.replace("settings.workers", "2")


def test_a_switch_whose_opposite_the_script_has_itself_stays():
    before = script(f'{SWITCH}\nparser.add_argument("--no-bf16")', "TrainingArguments(bf16=args.bf16)")
    found = edited(before, ("precision", "bf16"), kind="transformers.TrainingArguments")
    assert found == before.replace("bf16=args.bf16", "bf16=True")


def test_a_switch_without_a_long_name_can_have_no_opposite_and_stays():
    before = script('parser.add_argument("-b", action="store_true")', "TrainingArguments(bf16=args.b)")
    found = edited(before, ("precision", "bf16"), kind="transformers.TrainingArguments")
    assert found == before.replace("bf16=args.b", "bf16=True")
    assert without_effect(before, found) == ["-b"]


def test_what_a_loader_without_workers_refuses_depends_on_its_workers_and_not_on_options_of_its_own():
    option = f'{WORKERS}\nparser.add_argument("--prefetch", type=int, default=None)'
    before = script(option, LOADER.replace(")", ", prefetch_factor=args.prefetch)"))
    found = edited(before, ("loader_workers", 2), ("prefetch", 4))
    assert "prefetch_factor=4 if args.workers > 0 else None" in found


def test_names_of_options_are_kept_without_their_values():
    assert given_names(["data", "-j4", "--key=secret", "--epochs", "2", "-j", "1"]) == ("-j", "--key", "--epochs")
