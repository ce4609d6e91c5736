"""What a technique changes where a library runs the training: an argument of the library's own object.

Where that object is made of the command line by an HfArgumentParser, its default is changed. Such an argument is used
where the script has no call of its own for it, and for the precision in every case: the library casts and scales by it.
"""

from __future__ import annotations

from collections.abc import Mapping

from hasten.errors import PlanError
from hasten.facts.choice import Choice
from hasten.facts.scripts.script_places import ScriptPlaces, TrainerPlace
from hasten.scripts.edits.edit import Edit, SetDefaults, SetKeywords, number_text

_ARGUMENTS = "transformers.TrainingArguments"
_PARSER = "transformers.HfArgumentParser"
_TRANSFORMERS: Mapping[str, Mapping[str, str]] = {"bf16": {"bf16": "True"}}
_BF16_ON_CPU = {"use_cpu": "True"}  # else transformers looks for a GPU that has bf16
_LIGHTNING = {"bf16": {"precision": '"bf16-mixed"'}}
_PRECISION: Mapping[str, Mapping[str, Mapping[str, str]]] = {
    _ARGUMENTS: _TRANSFORMERS,
    _PARSER: _TRANSFORMERS,
    "lightning.Trainer": _LIGHTNING,
    "lightning.Fabric": _LIGHTNING,
    "accelerate.Accelerator": {"bf16": {"mixed_precision": '"bf16"'}},
}
_LOADER: Mapping[str, str] = {
    "loader_workers": "dataloader_num_workers",
    "persistent_workers": "dataloader_persistent_workers",
    "pin_memory": "dataloader_pin_memory",
    "prefetch": "dataloader_prefetch_factor",
}
_COMPILE: Mapping[str, Mapping[str, str]] = {
    "default": {"torch_compile": "True"},
    "max-autotune": {"torch_compile": "True", "torch_compile_mode": '"max-autotune"'},
    "reduce-overhead": {"torch_compile": "True", "torch_compile_mode": '"reduce-overhead"'},
}


def trainer_edits(choice: Choice, places: ScriptPlaces) -> list[Edit]:
    """Empty where the choice is made in the script's own calls. Raises PlanError where the object cannot have it."""
    trainer = places.trainer
    if trainer is None:
        return []
    if choice.technique == "precision":
        keywords = _precision(choice, places, trainer)
    elif trainer.kind in (_ARGUMENTS, _PARSER):
        keywords = _of_transformers(choice, places, trainer)
    else:
        keywords = {}
    if not keywords:
        return []
    change = SetDefaults if trainer.kind == _PARSER else SetKeywords
    return [change(call=trainer.call, keywords=keywords)]


def _precision(choice: Choice, places: ScriptPlaces, trainer: TrainerPlace) -> Mapping[str, str]:
    keywords = _PRECISION[trainer.kind].get(str(choice.value), {})
    if keywords and trainer.precision:
        raise PlanError(f"{trainer.kind} has precision {trainer.precision} already")
    on_cpu = places.device == "cpu" and keywords.keys() == {"bf16"}
    return {**keywords, **_BF16_ON_CPU} if on_cpu else keywords


def _of_transformers(choice: Choice, places: ScriptPlaces, trainer: TrainerPlace) -> Mapping[str, str]:
    name, value = choice.technique, choice.value
    if name in _LOADER and places.loader is None and choice.options.get("kind") != "threads":
        return {_LOADER[name]: number_text(value)}
    if name == "compile" and not places.optimizers:
        return _COMPILE.get(str(value), {})
    if name == "fused_optimizer" and not places.optimizers:
        if trainer.optimizer != "AdamW" or value != "fused":
            raise PlanError(f"TrainingArguments has no {value} form of {trainer.optimizer}")
        return {"optim": '"adamw_torch_fused"'}
    return {}
