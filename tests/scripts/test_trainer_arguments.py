"""Choices as arguments of the object of a library that runs the training, where the script makes that object."""

from __future__ import annotations

import ast

import pytest

from hasten.errors import PlanError
from hasten.facts.choice import Choice, Value
from hasten.facts.scripts.script_places import ScriptPlaces, SourceCall, TrainerPlace
from hasten.scripts.edits.edited_source import edited_source
from hasten.scripts.edits.technique_edits import edits_of

KINDS = {
    "transformers.TrainingArguments": 'args = TrainingArguments("results", num_train_epochs=2)\n',
    "transformers.HfArgumentParser": "(args,) = parser.parse_args_into_dataclasses()\n",
    "lightning.Trainer": "trainer = L.Trainer(max_epochs=3)\n",
    "lightning.Fabric": "fabric = Fabric()\n",
    "accelerate.Accelerator": "accelerator = Accelerator(mixed_precision=args.precision)\n",
}
PRECISIONS = {
    "transformers.TrainingArguments": "num_train_epochs=2, bf16=True, use_cpu=True)",
    "transformers.HfArgumentParser": "parser.set_defaults(bf16=True, use_cpu=True)\n(args,) = parser",
    "lightning.Trainer": 'L.Trainer(max_epochs=3, precision="bf16-mixed")',
    "lightning.Fabric": 'Fabric(precision="bf16-mixed")',
    "accelerate.Accelerator": 'Accelerator(mixed_precision="bf16")',
}
PARSER = "transformers.HfArgumentParser"
TRANSFORMERS = "transformers.TrainingArguments"


def first_call(source: str) -> SourceCall:
    found = next(node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    assert found.end_lineno is not None
    assert found.end_col_offset is not None
    return SourceCall(
        file="train.py",
        line=found.lineno,
        column=found.col_offset,
        end_line=found.end_lineno,
        end_column=found.end_col_offset,
    )


def edited(
    kind: str, *choices: Choice, precision: str = "", optimizer: str = "AdamW", line: str = "", device: str = "cpu"
) -> str:
    source = f"import torch\n{line or KINDS[kind]}"
    places = ScriptPlaces(
        script="train.py",
        sources={},
        device=device,
        optimizers=(),
        trainer=TrainerPlace(kind=kind, call=first_call(source), precision=precision, optimizer=optimizer),
        missing={"loader": "the DataLoader is made by transformers, not by the script"},
    )
    return edited_source(source, edits_of(choices, places, lambda file: source))


def choice(technique: str, value: Value) -> Choice:
    return Choice(technique=technique, value=value)


@pytest.mark.parametrize("kind", KINDS)
def test_precision_is_an_argument(kind):
    assert PRECISIONS[kind] in edited(kind, choice("precision", "bf16"))


@pytest.mark.parametrize("kind", KINDS)
def test_float16_is_refused_because_its_scaled_losses_cannot_be_compared(kind):
    with pytest.raises(PlanError, match="fp16 scales the loss"):
        edited(kind, choice("precision", "fp16"), device="cuda")


def test_only_a_script_on_the_cpu_is_kept_there():
    assert "num_train_epochs=2, bf16=True)" in edited(TRANSFORMERS, choice("precision", "bf16"), device="cuda")


@pytest.mark.parametrize("kind", KINDS)
def test_a_precision_that_the_script_has_chosen_stays(kind):
    with pytest.raises(PlanError, match="has precision bf16 already"):
        edited(kind, choice("precision", "bf16"), precision="bf16")


def test_choices_of_the_loader_are_arguments_where_transformers_makes_it():
    found = edited(TRANSFORMERS, choice("loader_workers", 2), choice("persistent_workers", True), choice("prefetch", 4))
    assert "dataloader_num_workers=2, dataloader_persistent_workers=True, dataloader_prefetch_factor=4)" in found


def test_compile_and_fused_are_arguments_where_transformers_makes_the_optimizer():
    assert "torch_compile=True)" in edited(TRANSFORMERS, choice("compile", "default"))
    assert 'optim="adamw_torch_fused")' in edited(TRANSFORMERS, choice("fused_optimizer", "fused"))


def test_another_optimizer_than_adamw_is_not_replaced():
    with pytest.raises(PlanError, match="no fused form of SGD"):
        edited(TRANSFORMERS, choice("fused_optimizer", "fused"), optimizer="SGD")


def test_a_parser_of_the_arguments_has_other_defaults():
    defaults = "parser.set_defaults(bf16=True, use_cpu=True, dataloader_num_workers=2)\n"
    found = edited(PARSER, choice("precision", "bf16"), choice("loader_workers", 2))
    assert found == f"import torch\n{defaults}{KINDS[PARSER]}"


def test_a_parser_without_a_name_is_refused():
    with pytest.raises(PlanError, match="no name"):
        edited(PARSER, choice("precision", "bf16"), line="HfArgumentParser(A).parse()\n")


def test_a_setting_of_the_process_is_written_as_for_any_script():
    assert "torch.set_num_threads(1)" in edited(TRANSFORMERS, choice("threads", 1))


@pytest.mark.parametrize("value", ["2); evil(", "True"])
def test_no_text_of_a_plan_becomes_an_argument(value):
    with pytest.raises(PlanError):
        edited(TRANSFORMERS, choice("loader_workers", value))
