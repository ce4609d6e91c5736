"""Files that somebody hostile has made: each does to something sound what no program of ours would do.

A payload is put in place by a function (sound, marker) -> what to open. `sound` is a copy of something that opens well;
`marker` is a file that must never come to be: every payload that could run would make it.
"""

from __future__ import annotations

import builtins
import collections
import functools
import importlib
import io
import json
import os
import pickle
import runpy
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

Put = Callable[[Path, Path], Path]
WEIGHTS, PLAN, RUN, SHARDS, CACHE = "weights", "plan", "run", "shards", "cache"
UNFIT = "that these are weights of the model"
UNKNOWN = "that what the plan asks for is known"

# Clears the screen, names the window, writes to the left, ends a line; then closes whatever HTML it may stand in.
HOSTILE = "\x1b[2J\x1b]0;owned\x07\x9b31m\r\x08\u202e\u2066\u2028\x00\x7f</title></style><script>alert(1)</script>\"'>"
DEEP = "[" * 100_000 + "]" * 100_000
HUGE = "9" * 5000  # digits: Python refuses to read more than 4300


@dataclass(frozen=True)
class Payload:
    """kind: of what is opened. file: that is changed in it; empty to try every door. spoils: the file, or what else
    is true no more, so that who needs it has to refuse; empty where nothing is."""

    name: str
    kind: str
    put: Put
    spoils: str = ""
    file: str = ""


def as_bytes(value: str | bytes) -> bytes:
    return value.encode(errors="surrogatepass") if isinstance(value, str) else value


def written(kind: str, file: str, name: str, content: str | bytes, spoils: str | bool = True) -> Payload:
    """`file` has this content. Of a plan the file is the one that is opened. spoils: True for the file itself."""

    def put(sound: Path, marker: Path) -> Path:
        path = sound if file == PLAN else sound.with_suffix(".trials.jsonl") if file == "trials" else sound / file
        path.write_bytes(as_bytes(content))
        return sound

    return Payload(f"{file}: {name}", kind, put, file if spoils is True else spoils or "", file)


# ── what runs when it is unpickled ──────────────────────────────────────────────────────────────────────────────────


class Calls:
    """Unpickling it calls the function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> Any:
        return (self.function, self.arguments)


class Built:
    """Unpickling it makes an object, and then gives that a state which calls the function."""

    def __init__(self, inner: Calls) -> None:
        self.inner = inner

    def __reduce__(self) -> Any:
        return (collections.OrderedDict, (), {"state": self.inner}, None, iter([("key", self.inner)]))


def gadgets(marker: Path) -> dict[str, Any]:
    """By name: an object that makes the marker when it is unpickled."""
    code, touch = f"open({str(marker)!r}, 'w').close()", f"touch '{marker}'"
    script = marker.with_name("planted.py")
    script.write_text(code)
    return {
        "os.system": Calls(os.system, touch),
        "builtins.exec": Calls(builtins.exec, code),
        "os.mkdir": Calls(os.mkdir, str(marker)),
        "runpy": Calls(runpy.run_path, str(script)),
        "partial": Calls(functools.partial(builtins.exec, code)),
        "getattr": Calls(getattr(importlib.import_module("posix"), "system"), touch),  # noqa: B009  as a pickle would
        "torch.load": Calls(functools.partial(torch.load, weights_only=False), str(inner_pickle(marker))),
        "in a state": Built(Calls(builtins.exec, code)),
    }


def inner_pickle(marker: Path) -> Path:
    """A file that runs, for a payload that loads it."""
    path = marker.with_name("inner.pkl")
    path.write_bytes(pickle.dumps(Calls(os.mkdir, str(marker))))
    return path


def zipped(path: Path, content: Any) -> None:
    torch.save(content, path)


def legacy(path: Path, content: Any) -> None:
    torch.save(content, path, _use_new_zipfile_serialization=False)


def plain_pickle(path: Path, content: Any) -> None:
    path.write_bytes(pickle.dumps(content, protocol=2))


def tarred(path: Path, content: Any) -> None:
    """The form that torch wrote before 2017."""
    with tarfile.open(path, "w") as archive:
        for name in ("sys_info", "pickle", "storages", "tensors"):
            text = pickle.dumps(content, protocol=2)
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text))


PICKLES: dict[str, Callable[[Path, Any], None]] = {
    "a.pt": zipped,
    "old.pth": legacy,
    "plain.bin": plain_pickle,
    "tar.pt": tarred,
}
GADGETS = (
    *("os.system", "builtins.exec", "os.mkdir", "runpy", "partial", "getattr"),
    *("torch.load", "in a state"),
)


def _pickled(gadget: str, name: str) -> Payload:
    def put(sound: Path, marker: Path) -> Path:
        path = sound.with_name(name)
        PICKLES[name](path, gadgets(marker)[gadget])
        return path

    return Payload(f"{gadget} in {name}", WEIGHTS, put, WEIGHTS)


def _beside_weights(name: str, where: str) -> Payload:
    def put(sound: Path, marker: Path) -> Path:
        path, good = sound.with_name(name), weights()
        harm = gadgets(marker)["os.system"]
        content = {"inside": {"state_dict": good | {"x": harm}}, "beside": {"state_dict": good, "args": harm}}[where]
        zipped(path, content)
        return path

    return Payload(f"os.system {where} the weights in {name}", WEIGHTS, put, WEIGHTS)


def weights() -> dict[str, torch.Tensor]:
    return {"weight": torch.zeros(3, 6), "bias": torch.zeros(3)}


def pickles() -> Iterator[Payload]:
    for name in PICKLES:
        yield from (_pickled(gadget, name) for gadget in GADGETS)
    yield from (_beside_weights("a.ckpt", where) for where in ("inside", "beside"))
    for name, change in CRAFTED_ZIPS.items():
        yield Payload(f"zip: {name}", WEIGHTS, functools.partial(_zip_changed, change), WEIGHTS)
    yield Payload("a method of a tensor replaced", WEIGHTS, _method_replaced)
    yield Payload("a storage larger than its record", WEIGHTS, functools.partial(_zip_changed, _LARGER_STORAGE))
    yield Payload("methods of a dictionary replaced", WEIGHTS, _methods_replaced)
    yield Payload("names with control codes", WEIGHTS, _hostile_names, UNFIT)
    yield Payload("a wrapper with control codes", WEIGHTS, _hostile_wrapper, WEIGHTS)


def _zip_changed(change: Callable[[dict[str, bytes]], dict[str, bytes]], sound: Path, marker: Path) -> Path:
    path = sound.with_name("a.pt")
    zipped(path, weights())
    return _rewritten(path, change)


def _rewritten(path: Path, change: Callable[[dict[str, bytes]], dict[str, bytes]]) -> Path:
    with zipfile.ZipFile(path) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in change(content).items():
            archive.writestr(name, data)
    return path


def _with_pickle(change: Callable[[bytes], bytes]) -> Callable[[dict[str, bytes]], dict[str, bytes]]:
    return lambda content: {name: change(data) if name.endswith("data.pkl") else data for name, data in content.items()}


_WITH_METHODS = _with_pickle(
    lambda text: text.replace(b"itemz", b"items").replace(b"keyz", b"keys").replace(b"gez", b"get")
)
_LARGER_STORAGE = _with_pickle(lambda text: text.replace(b"K\x12", b"J\xff\xff\xff\x7f"))
CRAFTED_ZIPS: dict[str, Callable[[dict[str, bytes]], dict[str, bytes]]] = {
    "a tensor larger than its storage": _with_pickle(
        lambda text: text.replace(b"K\x03K\x06", b"J\xff\xff\xff\x7fK\x06")
    ),
    "a place beyond its storage": _with_pickle(lambda text: text.replace(b"QK\x00", b"QJ\xff\xff\xff\x7f")),
    "names that lead out of it": lambda content: {f"../../{name}": data for name, data in content.items()},
    "a list in itself": _with_pickle(lambda text: b"\x80\x02]q\x00h\x00a."),
    "lists in lists": _with_pickle(lambda text: b"\x80\x02" + b"]" * 50_000 + b"a" * 49_999 + b"."),
    "a name of another module": _with_pickle(lambda text: b"\x80\x02cos.path\nos.system\n."),
    "a name with control codes": _with_pickle(lambda text: b"\x80\x02c\x1b[2Jos\nsys\x1btem\n."),
}


def _method_replaced(sound: Path, marker: Path) -> Path:
    """A parameter may come with attributes, and one of the instance hides a method of the class."""
    tensor = torch.nn.Parameter(torch.zeros(3, 6))
    tensor.detach = tensor.clone = tensor.copy_ = collections.OrderedDict  # type: ignore[method-assign]
    path = sound.with_name("a.pt")
    zipped(path, weights() | {"weight": tensor})
    return path


def _methods_replaced(sound: Path, marker: Path) -> Path:
    """A dictionary may have attributes, too. They get their names when it is pickled, as that calls its methods."""
    content = collections.OrderedDict(state_dict=weights())
    content.__dict__.update(dict.fromkeys(("itemz", "keyz", "gez"), collections.OrderedDict))
    zipped(sound.with_name("a.pt"), content)
    return _rewritten(sound.with_name("a.pt"), _WITH_METHODS)


def _hostile_names(sound: Path, marker: Path) -> Path:
    path = sound.with_name("a.pt")
    zipped(path, {HOSTILE: torch.zeros(1), f"{HOSTILE}2": torch.zeros(1)})
    return path


def _hostile_wrapper(sound: Path, marker: Path) -> Path:
    path = sound.with_name("a.pt")
    zipped(path, {"state_dict": {HOSTILE: HOSTILE}, HOSTILE: HOSTILE})
    return path


# ── safetensors ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _tensor(start: Any, end: Any, shape: Any = (4,), dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def _header(content: Any, body: int = 16, length: int | None = None) -> bytes:
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + bytes(body)


SAFETENSORS: dict[str, bytes] = {
    "tensors over each other": _header({"a": _tensor(0, 16), "b": _tensor(8, 24)}, 24),
    "a negative shape": _header({"a": _tensor(0, 16, [-4])}),
    "a place that overflows": _header({"a": _tensor(0, (1 << 64) - 1)}),
    "a header of 2**63 bytes": _header({}, length=1 << 63),
    "a deep header": _header(DEEP.encode()),
    "a name twice": _header(
        b'{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},"a":{"dtype":"I32","shape":[4],"data_offsets":[0,16]}}'
    ),
    "nothing": b"",
    "a number of 5000 digits": _header(f'{{"a":{{"dtype":"F32","shape":[{HUGE}],"data_offsets":[0,16]}}}}'.encode()),
    "a name with control codes": _header({HOSTILE: _tensor(0, 16)}),
    "a tensor of no values and many rows": _header({"a": _tensor(0, 0, [0, (1 << 63) - 1])}, 0),
}
SOUND_SAFETENSORS = (
    "a name twice",
    "a name with control codes",
    "a tensor of no values and many rows",
)  # to its reader


def _safetensors(name: str) -> Payload:
    def put(sound: Path, marker: Path) -> Path:
        path = sound.with_name("a.safetensors")
        path.write_bytes(SAFETENSORS[name])
        return path

    return Payload(f"safetensors: {name}", WEIGHTS, put, WEIGHTS if name not in SOUND_SAFETENSORS else UNFIT)


def _renamed(suffix: str) -> Payload:
    def put(sound: Path, marker: Path) -> Path:
        path = sound.with_name(f"a{suffix}")
        zipped(path, gadgets(marker)["os.system"])
        return path

    return Payload(f"a pickle that is called {suffix}", WEIGHTS, put, WEIGHTS)


def weights_files() -> list[Payload]:
    return [
        *pickles(),
        *map(_safetensors, SAFETENSORS),
        *map(_renamed, (".safetensors", ".toml", ".json", "")),
    ]


# ── shards and caches ───────────────────────────────────────────────────────────────────────────────────────────────


def _json_changed(file: str, name: str, change: Callable[[dict[str, Any]], Any], kind: str) -> Payload:
    def put(sound: Path, marker: Path) -> Path:
        path = sound / file
        changed = change(json.loads(path.read_text()))
        path.write_text(changed if isinstance(changed, str) else json.dumps(changed))
        return sound

    return Payload(f"{file}: {name}", kind, put, file, file)


def _first_shard(**fields: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda index: index | {"shards": [index["shards"][0] | fields, *index["shards"][1:]]}


SHARD_INDEXES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "deep": lambda index: DEEP,
    "a huge number": lambda index: f'{{"schema": {HUGE}}}',
    "a name that leads out": _first_shard(name="../../etc/passwd"),
    "a name with control codes": _first_shard(name=f"{HOSTILE}.tar"),
    "a digest that is none": _first_shard(sha256=HOSTILE),
    "an unknown key": lambda index: index | {HOSTILE: 1},
}


def shard_folders() -> list[Payload]:
    def rows(sound: Path, marker: Path) -> Path:
        path = sound / "index.bin"
        path.write_bytes(b"\xff" * path.stat().st_size)
        return sound

    def pickled(sound: Path, marker: Path) -> Path:
        (sound / "index.json").write_bytes(pickle.dumps(gadgets(marker)["os.system"]))
        return sound

    return [
        *(_json_changed("index.json", name, change, SHARDS) for name, change in SHARD_INDEXES.items()),
        Payload("index.json: a pickle", SHARDS, pickled, "index.json", "index.json"),
        Payload("index.bin: all ones", SHARDS, rows, "index.bin", "index.bin"),
    ]


def folder_copied(sound: Path, target: Path) -> Path:
    """A copy that a payload may change."""
    if sound.is_dir():
        return Path(shutil.copytree(sound, target / sound.name))
    for each in sound.parent.glob(f"{sound.stem}*"):
        shutil.copy(each, target / each.name)
    return target / sound.name
