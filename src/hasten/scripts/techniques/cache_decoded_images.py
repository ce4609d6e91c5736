"""Decode every image of a data set once, and keep it in memory.

What it does: where a data set calls `Image.open(path).convert("RGB")` for each sample, in one statement or in two, it
calls a function with `functools.lru_cache` instead. Random transforms still run for each sample.

Why it is faster: decoding a compressed image takes far longer than cropping or resizing it.

When it loses: decoded images are many times larger than their files. The first epoch is as slow as before. Every loader
worker has a cache of its own, which is lost with the worker at the end of an epoch unless workers persist.

What it changes: nothing ("bit-exact").

Limits: the decoded images fit into a quarter of the machine's memory. An image that is drawn on in place would be
changed for all later epochs, so such code is refused.

Example:

    @functools.lru_cache(maxsize=None)
    def decoded(path):
        return Image.open(path).convert("RGB")
"""

from __future__ import annotations

import ast
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, TypeGuard

from hasten.doctor.reading.source_code import Code
from hasten.errors import PlanError
from hasten.facts.choice import Preserves
from hasten.facts.formatting import byte_size
from hasten.facts.scripts.script_places import ScriptPlaces, SourceCall
from hasten.facts.techniques.stage import Stage
from hasten.facts.techniques.symptom import Symptom
from hasten.scripts.edits.edit import AddDefinition, AddImport, Edit, ReplaceCall
from hasten.scripts.edits.source_places import Function, call_at, free_name, names_in, place_of, read_source
from hasten.scripts.patching import replaced
from hasten.scripts.techniques.script_technique import RunningLoader, ScriptTechnique, Sources

NAMES = ("decoded", "decoded_image", "cached_image", "read_image")
OF_MEMORY = 4  # the part of the machine's memory that decoded images may take is one of so many
LONGEST_SECONDS = 60.0  # of decoding all images, which every trial does
_MEASURED_SAMPLES = 4  # whose images are decoded to know their size
_IN_PLACE = frozenset(
    {"alpha_composite", "frombytes", "paste", "putalpha", "putdata", "putpalette", "putpixel", "thumbnail"}
)


def decodings(code: Code, file: str) -> tuple[SourceCall, ...]:
    """Calls of Image.open(…).convert(…) in a data set, or in a function that it calls; of Image.open(…) alone where the
    next statement converts the image."""
    data_sets = [each for each in code.all(ast.ClassDef) if any(map(_gets_items, each.body))]
    called = {name for each in data_sets for name in names_in(each)}
    found, calls = list[SourceCall](), [(call, _opened(call)) for call in code.methods("convert")]
    for call, opened in [*calls, *((each, each) for each in _converted_next(code.tree))]:
        if opened is not None and code.names.qualified(opened.func) == "PIL.Image.open":
            around = [*code.names.around(call)]
            functions = {each.name for each in around if isinstance(each, Function)}
            if any(each in data_sets for each in around) or functions & called:
                found.append(place_of(call, file))
    return tuple(found)


def _opened(converts: ast.Call) -> ast.Call | None:
    """The call whose result is converted at once."""
    match converts.func:
        case ast.Attribute(ast.Call() as opened, "convert"):
            return opened
        case _:
            return None


def _converted_next(tree: ast.Module) -> dict[ast.Call, ast.Call]:
    """Of `image = Image.open(path)` and, next, `image.convert(mode)`: the first call -> the second one. The image that
    is not converted has no other use."""
    found = dict[ast.Call, ast.Call]()
    for function in (each for each in ast.walk(tree) if isinstance(each, Function)):
        loads = _loads(function)
        for first, second in pairwise(function.body):
            match first:
                case ast.Assign([ast.Name(name)], ast.Call() as call):
                    converts = [each for each in ast.walk(second) if _converts(each, name)]
                    is_last_use = loads.count(name) == 1 or _assigns(second, name)
                    if len(converts) == 1 and _loads(second).count(name) == 1 and is_last_use:
                        found[call] = converts[0]
                case _:
                    pass
    return found


def _loads(node: ast.AST) -> list[str]:
    return [each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)]


def _converts(node: ast.AST, name: str) -> TypeGuard[ast.Call]:
    match node:
        case ast.Call(ast.Attribute(ast.Name(converted), "convert")):
            return converted == name
        case _:
            return False


def _assigns(statement: ast.stmt, name: str) -> bool:
    match statement:
        case ast.Assign([ast.Name(target)]):
            return target == name
        case _:
            return False


def _gets_items(statement: ast.stmt) -> bool:
    return isinstance(statement, Function) and statement.name == "__getitem__"


def edits(places: ScriptPlaces, sources: Sources) -> list[Edit]:
    if not places.decodings:
        raise PlanError("no data set of the script calls Image.open(…).convert(…)")
    found = list[Edit]()
    for file in dict.fromkeys(each.file for each in places.decodings):
        found += _edits_in(file, sources(file), [each for each in places.decodings if each.file == file])
    return found


def _edits_in(file: str, text: str, calls: list[SourceCall]) -> Iterator[Edit]:
    """One function for each way of decoding."""
    tree = read_source(text)
    _check_not_drawn_on(tree)
    functions, in_two = dict[tuple[str, str], str](), _converted_next(tree)
    for place in calls:
        call = call_at(tree, place)
        how, path = _parts(text, _opened(call) or call, in_two.get(call, call), _open_files(tree, call))
        if how not in functions:
            name = free_name(tree, [each for each in NAMES if each not in functions.values()])
            functions[how] = name
            yield AddDefinition(call=place, lines=_definition(name, *how))
        yield ReplaceCall(call=place, source=f"{functions[how]}({path})")
    yield AddImport(file=file, module="functools")


def _definition(name: str, opens: str, converts: str) -> tuple[str, ...]:
    return "@functools.lru_cache(maxsize=None)", f"def {name}(path):", f"    return {opens}(path).convert({converts})"


def _parts(text: str, opens: ast.Call, converts: ast.Call, files: set[str]) -> tuple[tuple[str, str], str]:
    """Of `Image.open(path).convert("RGB")`: what opens and the arguments of convert, and the path. files: names of open
    ones, each of which is another object."""
    match opens:
        case ast.Call(_, [path], []) if _is_plain(path) and not files & names_in(path):
            pass
        case _:
            raise PlanError(f"line {opens.lineno} opens an image by more than the name of a file")
    arguments = [*converts.args, *converts.keywords]
    if not all(isinstance(getattr(each, "value", None), str | ast.Constant) for each in arguments):
        raise PlanError(f"line {converts.lineno} does not convert all images to one mode")
    written = (_segment(text, each) for each in arguments)
    return (_segment(text, opens.func), ", ".join(written)), _segment(text, path)


def _open_files(tree: ast.Module, call: ast.Call) -> set[str]:
    """Their names in the function of a call: of `with open(path, "rb") as file:`, and of `file = open(path, "rb")`."""
    around = [each for each in ast.walk(tree) if isinstance(each, Function) and call in ast.walk(each)]
    found = set[str]()
    for node in ast.walk(around[-1] if around else tree):
        match node:
            case ast.withitem(ast.Call(), ast.Name(name)) | ast.Assign([ast.Name(name)], ast.Call(ast.Name("open"))):
                found.add(name)
            case _:
                pass
    return found


def _segment(text: str, node: ast.AST) -> str:
    segment = ast.get_source_segment(text, node)
    assert segment is not None
    return segment


def _is_plain(node: ast.expr) -> bool:
    """Whether it is made of names, numbers and text: what a file is opened by, and no open file."""
    match node:
        case ast.Name() | ast.Constant() | ast.JoinedStr():
            return True
        case ast.Attribute(value) | ast.Subscript(value, ast.Name() | ast.Constant()):
            return _is_plain(value)
        case ast.Subscript(value, index):
            return _is_plain(value) and _is_plain(index)
        case ast.BinOp(left, ast.Add() | ast.Div(), right):
            return _is_plain(left) and _is_plain(right)
        case ast.Call(ast.Name("str" | "Path") | ast.Attribute(_, "join"), arguments, []):
            return all(map(_is_plain, arguments))
        case _:
            return False


def _check_not_drawn_on(tree: ast.Module) -> None:
    for node in ast.walk(tree):
        name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
        if name in _IN_PLACE or name == "ImageDraw":
            raise PlanError(f"line {getattr(node, 'lineno', 0)} draws on images in place ({name})")


# ── the running script ──────────────────────────────────────────────────────────────────────────────────────────────


def why_not(running: RunningLoader) -> str:
    from torch.utils.data import IterableDataset

    if running.loader is None:
        return "the steps read no DataLoader"
    if running.epochs is None:
        return "the number of the script's epochs is not known"
    if running.epochs == 1:
        return "the script has one epoch, so no image is decoded twice"
    dataset: Any = running.loader.dataset
    if isinstance(dataset, IterableDataset):
        return "the data set is read in one order, without an index"
    samples = len(dataset)
    taken, seconds = decoding_of(dataset, samples)
    most = running.memory_bytes // OF_MEMORY
    if taken * max(1, running.loader.num_workers) > most:
        needs = f"the decoded images take {byte_size(taken)}"
        each = " in each of its workers" if running.loader.num_workers else ""
        return f"{needs}{each}, more than a quarter of the machine's memory"
    if seconds > LONGEST_SECONDS:
        return f"decoding all images takes {seconds:.0f} s, longer than a trial may take"
    return "" if taken else "the data set decodes no image when a sample is read"


def decoding_of(dataset: Any, samples: int) -> tuple[int, float]:
    """Bytes of all images, decoded, and seconds of decoding them: by a few of them."""
    from PIL import Image

    measured = min(_MEASURED_SAMPLES, samples)
    total, seconds = 0, 0.0

    def noted(original: Callable[..., Any], image: Any, *args: Any, **named: Any) -> Any:
        nonlocal total, seconds
        begin = time.perf_counter()
        converted = original(image, *args, **named)
        seconds += time.perf_counter() - begin
        total += converted.width * converted.height * len(converted.getbands())
        return converted

    with replaced(Image.Image, "convert", noted):
        for number in range(measured):
            dataset[number * samples // measured]
    return total * samples // max(1, measured), seconds * samples / max(1, measured)


TECHNIQUE = ScriptTechnique(
    name="cache_decoded_images",
    stage=Stage.DATA,
    treats=Symptom.SLOW_LOADING,
    preserves=Preserves.BITS,
    costs=("memory for every decoded image, in every process that reads",),
    source="https://docs.python.org/3/library/functools.html#functools.lru_cache",
    edits=edits,
    why_not=why_not,
    fills_first_epoch=True,
)
