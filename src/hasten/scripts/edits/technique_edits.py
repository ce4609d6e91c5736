"""What each technique changes in a script's source. A technique that is not listed needs hasten's own training loop."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from hasten.errors import PlanError
from hasten.facts.choice import Choice
from hasten.facts.scripts.script_places import ScriptPlaces, SourceCall, WrapPlace
from hasten.scripts.edits.edit import (
    LOADER_ARGUMENTS,
    AddImport,
    AddLines,
    AddToHeader,
    Edit,
    SetDefaults,
    SetKeywords,
    WrapArguments,
    WrapStatements,
    number_text,
)
from hasten.scripts.edits.trainer_arguments import trainer_edits
from hasten.scripts.techniques import OF_SCRIPTS
from hasten.scripts.techniques.script_technique import Sources

NEEDS_OWN_LOOP = "needs hasten's own training loop, and so a job: docs/start/job.md"
_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
Editing = Callable[[Choice, ScriptPlaces], list[Edit]]


def edits_of(choices: Sequence[Choice], places: ScriptPlaces, sources: Sources) -> list[Edit]:
    """Of a plan. Raises PlanError, with the reason, for a choice that the script's source does not allow."""
    found = list[Edit]()
    for choice in choices:
        of_scripts = next((each for each in OF_SCRIPTS if each.name == choice.technique), None)
        if of_scripts is not None:
            if choice.value is not True or choice.options:
                fix = "write true without options, or remove the line"
                raise PlanError(f"the plan asks for {choice}", where=choice.technique, fix=fix)
            found += of_scripts.edits(places, sources)
        elif choice.technique in EDITS:
            found += trainer_edits(choice, places) or EDITS[choice.technique](choice, places)
        else:
            raise PlanError(NEEDS_OWN_LOOP, where=choice.technique)
    return _merged(found)


def _merged(edits: Sequence[Edit]) -> list[Edit]:
    """One edit for the keywords or defaults of one call, and one for the lines at one place; none twice."""
    found = list[Edit]()
    for edit in edits:
        same = next((number for number, each in enumerate(found) if _same_place(each, edit)), None)
        before = None if same is None else found[same]
        match before, edit:
            case SetKeywords(), SetKeywords():
                keywords, without = {**before.keywords, **edit.keywords}, (*before.without, *edit.without)
                joined: Edit = replace(edit, keywords=keywords, without=without)
            case SetDefaults(), SetDefaults():
                joined = replace(edit, keywords={**before.keywords, **edit.keywords})
            case AddToHeader(), AddToHeader():
                joined = AddToHeader(file=edit.file, lines=(*before.lines, *edit.lines))
            case AddLines(), AddLines() if before != edit:
                joined = replace(edit, lines=(*before.lines, *edit.lines))
            case (AddImport(), AddImport()) | (AddLines(), AddLines()):
                joined = edit
            case _:
                found.append(edit)
                continue
        assert same is not None
        found[same] = joined
    return found


def _same_place(one: Edit, other: Edit) -> bool:
    match one, other:
        case (SetKeywords(call=first), SetKeywords(call=second)) | (SetDefaults(call=first), SetDefaults(call=second)):
            return first == second
        case AddToHeader(file=first), AddToHeader(file=second):
            return first == second
        case AddLines(call=first), AddLines(call=second):
            return first == second and one.where == other.where
        case AddImport(), AddImport():
            return one == other
        case _:
            return False


def _there(found: SourceCall | str | None, name: str, places: ScriptPlaces) -> None:
    if not found:
        raise PlanError((places.missing or {}).get(name, f"the script has no {name}"))


# ── the loader ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _loader_keywords(**keywords: str) -> Editing:
    """ "{value}" stands for the choice's own."""

    def edits(choice: Choice, places: ScriptPlaces) -> list[Edit]:
        if choice.options.get("kind") == "threads":
            raise PlanError("torch's DataLoader has no worker threads")
        _there(places.loader, "loader", places)
        assert places.loader is not None
        written = {name: text.format(value=number_text(choice.value)) for name, text in keywords.items()}
        return [SetKeywords(call=places.loader, keywords=written, positions=LOADER_ARGUMENTS)]

    return edits


# ── the process ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _header(line: str) -> Editing:
    def edits(choice: Choice, places: ScriptPlaces) -> list[Edit]:
        text = line.format(value=number_text(choice.value)) if "{" in line else line
        return [AddImport(file=places.script, module="torch"), AddToHeader(file=places.script, lines=(text,))]

    return edits


_KEEP_FREED_MEMORY = (
    'if sys.platform == "linux" and hasattr(ctypes.CDLL(None), "mallopt"):',  # musl has none
    "    mallopt = ctypes.CDLL(None).mallopt",
    "    mallopt(-4, 0)  # M_MMAP_MAX = 0: large tensors are allocated on the heap too",
    "    mallopt(-1, -1)  # M_TRIM_THRESHOLD = max: freed memory stays for the next step, already mapped",
)


def _allocator(choice: Choice, places: ScriptPlaces) -> list[Edit]:
    if choice.value != "keep_freed_memory":
        raise PlanError("CUDA's allocator is set before the script starts: by PYTORCH_CUDA_ALLOC_CONF in the shell")
    if places.device != "cpu":
        raise PlanError(f"keep_freed_memory is for tensors of the CPU, and the script trains on {places.device}")
    imports = [AddImport(file=places.script, module=name) for name in ("ctypes", "sys")]
    return [*imports, AddToHeader(file=places.script, lines=_KEEP_FREED_MEMORY)]


# ── the model and its step ──────────────────────────────────────────────────────────────────────────────────────────


def _model(places: ScriptPlaces) -> str:
    _there(places.model, "model", places)
    assert places.model is not None
    return _as_name(places.model)


def _as_name(model: str) -> str:
    if not _NAME.fullmatch(model):
        raise PlanError(f"the model's name is {model!r}", fix="write a name, such as model or self.model")
    return model


def _optimizer(places: ScriptPlaces) -> SourceCall:
    _there(places.optimizers[0] if places.optimizers else None, "optimizers", places)
    return places.optimizers[0]


def _before_optimizer(places: ScriptPlaces, method: str) -> AddLines:
    """A call of a method of the model. Not behind: the optimizer can be returned at once."""
    made = _optimizer(places)
    return AddLines(call=places.named or made, lines=(f"{_model(places)}.{method}",), where="before")


def _before_wrapper(wrapped: WrapPlace, method: str) -> AddLines:
    """A DistributedDataParallel has buffers of gradients in the memory format that it finds."""
    return AddLines(call=wrapped.call, lines=(f"{_as_name(wrapped.name)}.{method}",), where="before")


def _fused_optimizer(choice: Choice, places: ScriptPlaces) -> list[Edit]:
    _optimizer(places)
    kinds = ("fused", "foreach")
    if choice.value not in kinds:
        raise PlanError(f"is {choice.value!r}", fix='write "fused" or "foreach"')
    without = tuple(name for name in kinds if name != choice.value)
    return [SetKeywords(call=each, keywords={str(choice.value): "True"}, without=without) for each in places.optimizers]


def _compile(choice: Choice, places: ScriptPlaces) -> list[Edit]:
    modes = {"default": "", "max-autotune": 'mode="max-autotune"', "reduce-overhead": 'mode="reduce-overhead"'}
    if choice.value not in modes:
        raise PlanError(f"is {choice.value!r}", fix=f"write one of {', '.join(modes)}")
    return [_before_optimizer(places, f"compile({modes[str(choice.value)]})")]


def _channels_last(choice: Choice, places: ScriptPlaces) -> list[Edit]:
    _there(places.forward, "forward", places)
    assert places.forward is not None
    if not places.images:
        raise PlanError((places.missing or {}).get("images", "the model is not called with images"))
    method = "to(memory_format=torch.channels_last)"
    model = _before_wrapper(places.wrapped, method) if places.wrapped else _before_optimizer(places, method)
    files = dict.fromkeys([model.call.file, places.forward.file])
    return [
        *(AddImport(file=file, module="torch") for file in files),
        model,
        WrapArguments(call=places.forward, positions=places.images, method=method),
    ]


def _precision(choice: Choice, places: ScriptPlaces) -> list[Edit]:
    if choice.value == "tf32":
        return _header('torch.set_float32_matmul_precision("high")')(choice, places)
    if choice.value != "bf16":
        raise PlanError("fp16 scales the loss, and losses and gradients of a script cannot be compared then")
    if places.autocast == "disabled":
        raise PlanError("the script has autocast of its own, which is disabled: enable that, as its options allow")
    if places.autocast:
        raise PlanError("the script has autocast of its own")
    if not places.passes:
        raise PlanError((places.missing or {}).get("passes", "the script has no backward pass"))
    if places.device not in ("cpu", "cuda"):
        raise PlanError(f"the device is {places.device!r}", fix='write "cpu" or "cuda"')
    context = f'torch.autocast("{places.device}", dtype=torch.bfloat16)'
    return [
        *(AddImport(file=file, module="torch") for file in dict.fromkeys(each.forward.file for each in places.passes)),
        *(WrapStatements(first=each.forward, last=each.backward, context=context) for each in places.passes),
    ]


EDITS: Mapping[str, Editing] = {
    "allocator": _allocator,
    "channels_last": _channels_last,
    "compile": _compile,
    "cudnn_autotune": _header("torch.backends.cudnn.benchmark = True"),
    "flush_denormals": _header("torch.set_flush_denormal(True)"),
    "fused_optimizer": _fused_optimizer,
    "loader_workers": _loader_keywords(num_workers="{value}"),
    "persistent_workers": _loader_keywords(persistent_workers="True"),
    "pin_memory": _loader_keywords(pin_memory="True"),
    "precision": _precision,
    "prefetch": _loader_keywords(prefetch_factor="{value}"),
    "threads": _header("torch.set_num_threads({value})"),
}
