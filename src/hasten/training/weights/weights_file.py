"""Weights from a file: of safetensors, or of torch.save.

A file of torch.save is a pickle: it is read with weights_only=True, which refuses to run code. It is read whole, as
torch checks a record's length only then. A safetensors file is memory-mapped: nobody must write into it meanwhile.

Source: https://docs.pytorch.org/docs/stable/notes/serialization.html, "torch.load with weights_only=True".
"""

from __future__ import annotations

import os
import pickle
import re
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from hasten.data.loading.data_errors import is_out_of_memory
from hasten.errors import Misconfigured, OutOfMemory, StorageFailed
from hasten.facts.formatting import printable, shortened
from hasten.regular_files import check_regular

SAFETENSORS = ".safetensors"
PICKLED = (".pt", ".pth", ".bin", ".ckpt")
WRAPPERS = ("state_dict", "model_state_dict", "model")  # keys under which trainers save the weights
_DEEPEST = 3  # levels of wrappers
_PARALLEL = "module."  # what DistributedDataParallel puts before names
_OF_COMPILED = re.compile(r"\b_orig_mod\.")  # what torch.compile puts before them
_MOST_SHOWN = 3
_ASKED_FOR = re.compile(r"\bGLOBAL ([\w.]+)")
_ADVICE = re.compile(r"weights_only|Weights only load|In PyTorch|Re-running|Do it only|documentation|trust")
_AGAIN = "download or save the file again"
_CONVERT = "use a safetensors file; if you trust this file, convert it with torch.load and safetensors.torch.save_file"


def read_weights(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The weights in a file, by name, on the CPU, for load_state_dict() of your own module.

    path: .safetensors; or .pt, .pth, .bin or .ckpt of torch.save, of which only tensors are read, from the file itself
        or from its "state_dict", "model_state_dict" or "model". Prefixes of torch are removed from the names: "module."
        where all of them have it, and "_orig_mod.".

    Tensors of a safetensors file are memory-mapped: do not write into the file while they are in use.

    Raises Misconfigured for a file that holds no weights, that asks to run code, or whose tensors do not match its
    records; StorageFailed when it cannot be read.
    """
    return without_prefixes(weights_in(Path(path)))


def weights_in(path: Path) -> dict[str, Tensor]:
    """As read_weights, by the names in the file."""
    check_file(path)
    if path.suffix.lower() == SAFETENSORS:
        return _of_safetensors(path)
    return _checked(_unwrapped(_unpickled(path), path), path)


def _unwrapped(content: object, path: Path) -> dict[Any, Any]:
    """The weights inside the dictionaries of trainers."""
    found, depth = _entries(content, path), 0
    while present := [name for name in WRAPPERS if isinstance(found.get(name), dict)]:
        if len(present) > 1 or depth == _DEEPEST:
            what = f"has weights under {' and under '.join(present)}, but only one of them can be used"
            raise Misconfigured(what, where=_name(path), fix=f"save one of them by itself; {_CONVERT}")
        found, depth = _entries(found[present[0]], path), depth + 1
    return found


def check_file(path: Path) -> None:
    """Check the path before anything is read. Raises as read_weights does."""
    if path.suffix.lower() not in (SAFETENSORS, *PICKLED):
        what = f"{path.suffix} is not a file type for weights" if path.suffix else "the file name has no extension"
        raise Misconfigured(what, where=_name(path), fix=f"give one of {', '.join((SAFETENSORS, *PICKLED))}")
    try:
        check_regular(path)
    except OSError as error:
        what = f"cannot be read: {error.strerror}" if os.path.lexists(path) else "there is no such file"
        raise Misconfigured(what, where=_name(path), fix="check the path of the weights") from error


def without_prefixes(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors without prefixes of torch; unchanged where two would get the same name."""
    found = dict(tensors)
    while True:
        if found and all(name.startswith(_PARALLEL) for name in found):
            shorter = {name.removeprefix(_PARALLEL): each for name, each in found.items()}
        elif any(map(_OF_COMPILED.search, found)):
            shorter = {_OF_COMPILED.sub("", name): each for name, each in found.items()}
        else:
            return found
        if len(shorter) < len(found):
            return dict(tensors)
        found = shorter


def some(names: Iterable[str]) -> str:
    """The first few names, safe to print."""
    listed = sorted(names)
    shown = ", ".join(shortened(printable(name), 80) for name in listed[:_MOST_SHOWN])
    return shown + (f" and {len(listed) - _MOST_SHOWN:,} more" if len(listed) > _MOST_SHOWN else "")


def _of_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        found = safetensors.torch.load_file(path)
    except OSError as error:
        raise _unreadable(path, error) from error
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, RuntimeError, AttributeError) as error:
        what = f"is not a valid safetensors file: {_words(error)}"
        raise Misconfigured(what, where=_name(path), fix=_AGAIN) from error
    return _checked(_entries(found, path), path)


def _unpickled(path: Path) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # this module's errors say what is wrong
            return torch.load(path, map_location="cpu", weights_only=True, mmap=False)  # noqa: TID251
    except OSError as error:
        raise _unreadable(path, error) from error
    except Exception as error:  # torch's reader raises many kinds
        if is_out_of_memory(error):
            raise OutOfMemory("these weights do not fit into memory", where=_name(path)) from error
        what, fix = f"is not a weights file that torch.load reads: {_words(error)}", _AGAIN
        if asked := _ASKED_FOR.search(str(error)):
            what = f"asks for {shortened(printable(asked[1]), 80)}, which is not allowed in weights; no code was run"
            fix = _CONVERT
        raise Misconfigured(what, where=_name(path), fix=fix) from error


def _entries(found: object, path: Path) -> dict[Any, Any]:
    """Raises Misconfigured for anything but a dictionary with entries."""
    # dict.items of the class, as below: a file can give an object attributes that hide its methods.
    entries = dict(dict.items(cast("dict[Any, Any]", found))) if isinstance(found, dict) else None
    if entries:
        return entries
    what = f"holds no weights: it is {'empty' if entries is not None else f'a {type(found).__name__}'}"
    raise Misconfigured(what, where=_name(path), fix="give a state_dict")


def _checked(entries: dict[Any, Any], path: Path) -> dict[str, Tensor]:
    """Raises Misconfigured for anything but dense tensors by name."""
    odd = {str(name): each for name, each in entries.items() if not isinstance(name, str) or not _is_plain(each)}
    if odd:
        shown = some(f"{name} ({type(each).__name__})" for name, each in odd.items())
        what = f"holds something other than named dense tensors: {shown}"
        raise Misconfigured(what, where=_name(path), fix=f"give a state_dict; {_CONVERT}")
    return {name: Tensor.detach(each) for name, each in entries.items()}


def _is_plain(value: object) -> bool:
    return (
        isinstance(value, Tensor)
        and type(value) in (Tensor, nn.Parameter)
        and value.layout is torch.strided
        and value.device.type == "cpu"
        and not value.is_quantized
    )


def _words(error: Exception) -> str:
    """Its first sentence, without torch's advice to load the file although it may run code."""
    lines = [line for line in re.split(r"\n|\. ", str(error)) if line.strip()]
    if isinstance(error, pickle.UnpicklingError):
        lines = [line for line in lines if not _ADVICE.search(line)]
    return shortened(printable(lines[0].strip()), 200) if lines else type(error).__name__


def _name(path: Path) -> str:
    return printable(str(path))


def _unreadable(path: Path, error: Exception) -> StorageFailed:
    reason = getattr(error, "strerror", None) or str(error)
    fix = "check the path of the weights and who may read them"
    return StorageFailed(f"cannot be read: {printable(reason)}", where=_name(path), fix=fix)
