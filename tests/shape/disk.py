"""Only one file of the package changes what is on disk, and only one opens files for reading."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from shape.source import Fault, Source, called, dotted

ONLY_DOOR_TO_DISK = "src/hasten/checkpoint/files.py"
ONLY_DOOR_FOR_READING = "src/hasten/regular_files.py"
READS_THE_KERNELS_FILES = "src/hasten/facts/machine.py"
WRITING_CALLS = {
    "os": "open fdopen rename renames replace remove unlink truncate link symlink mkdir makedirs rmdir removedirs",
    "shutil": "copy copy2 copyfile copyfileobj copytree move rmtree make_archive",
    "tempfile": "NamedTemporaryFile TemporaryFile SpooledTemporaryFile mkstemp",
    "numpy": "save savez savez_compressed savetxt",
    "safetensors.torch": "save_file save_model",
    "safetensors.numpy": "save_file",
    "torch": "save",
}
WRITING_METHODS = "write_text write_bytes touch mkdir rmdir unlink symlink_to hardlink_to"
MODE = re.compile(r"[rwaxbtU+]+([:|]\w*)?")


def check_writes(source: Source) -> Iterator[Fault]:
    """Only one file changes what is on disk."""
    if source.path == ONLY_DOOR_TO_DISK:
        return
    for node in source.nodes:
        if not isinstance(node, ast.Call):
            continue
        if _is_a_setting_of_the_process(node):
            continue
        name = called(source, node)
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        module, _, function = name.rpartition(".")
        if name == "os.open" and (
            _only_reads(node) or [dotted(source, each) for each in node.args[:1]] == ["os.devnull"]
        ):
            continue
        if (
            function in WRITING_CALLS.get(module, "").split()
            or method in WRITING_METHODS.split()
            or _opens_for_writing(node, name, method)
        ):
            yield Fault(source, node.lineno, f"{name or method} changes the disk; only {ONLY_DOOR_TO_DISK} may")


def check_reads(source: Source) -> Iterator[Fault]:
    """Whatever is read is opened by one file, which refuses named pipes and devices."""
    if source.path in (ONLY_DOOR_FOR_READING, ONLY_DOOR_TO_DISK, READS_THE_KERNELS_FILES):
        return
    for node in source.nodes:
        if not isinstance(node, ast.Call):
            continue
        name = called(source, node)
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        is_nowhere = [dotted(source, each) for each in node.args[:1]] == ["os.devnull"]
        reads = name in ("open", "io.open", "os.open") or method in ("read_text", "read_bytes")
        of_a_path = method == "open" and all(isinstance(each, ast.Constant) for each in node.args)
        if (reads and not is_nowhere) or of_a_path:
            what = f"{name or method} would wait for a named pipe; use {ONLY_DOOR_FOR_READING}"
            yield Fault(source, node.lineno, what)


def _is_a_setting_of_the_process(call: ast.Call) -> bool:
    """Whether it is a call of Path("/proc/self/…"), which is no file on a disk."""
    match call.func:
        case ast.Attribute(value=ast.Call(args=[ast.Constant(value=str(path))])):
            return path.startswith("/proc/self/")
    return False


def _only_reads(call: ast.Call) -> bool:
    """Whether the flags of an os.open are written out, and every one of them is for reading."""
    if len(call.args) != 2 or call.keywords:
        return False
    flags, names = [call.args[1]], set[str]()
    while flags:
        each = flags.pop()
        if isinstance(each, ast.BinOp) and isinstance(each.op, ast.BitOr):
            flags += [each.left, each.right]
        else:
            names.add(each.attr if isinstance(each, ast.Attribute) else _looked_up(each))
    return names <= {"O_RDONLY", "O_NONBLOCK", "O_CLOEXEC", "O_NOFOLLOW", "O_BINARY"}


def _looked_up(node: ast.expr) -> str:
    """The name in getattr(module, "name", 0)."""
    match node:
        case ast.Call(func=ast.Name(id="getattr"), args=[_, ast.Constant(value=str(name)), ast.Constant(value=0)]):
            return name
    return ""


def _opens_for_writing(call: ast.Call, name: str, method: str) -> bool:
    """True for an open with a writing mode, or with a mode that only the running program knows."""
    given = [keyword.value for keyword in call.keywords if keyword.arg == "mode"]
    if name in ("open", "io.open"):
        mode = (given or call.args[1:2] or [ast.Constant("r")])[0]
        return not isinstance(mode, ast.Constant) or _writes(mode)
    return method == "open" and any(_writes(item) for item in [*given, *call.args])


def _writes(mode: ast.expr) -> bool:
    text = mode.value if isinstance(mode, ast.Constant) and isinstance(mode.value, str) else ""
    return bool(MODE.fullmatch(text)) and any(letter in text for letter in "wax+")
