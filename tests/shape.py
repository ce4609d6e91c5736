"""What the code of this project may look like, as functions from a source to the places that break a rule.

Every check reads the syntax tree, never the text, so a comment or a string cannot trip it and an alias cannot hide from
it. A check yields Faults; none means that the rule holds. test_shape.py puts them to the project, and
test_shape_checks.py puts planted faults to them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGE = "src/hasten/"
ONLY_DOOR_TO_DISK = "src/hasten/checkpoint/files.py"

MAY_IMPORT = {
    "errors": frozenset[str](),
    "stop_signals": frozenset[str](),
    "facts": frozenset[str](),
    # Compiled code, a cache and shards are files, and there is one door to disk.
    "kernels": frozenset({"facts", "checkpoint"}),
    "data": frozenset({"facts", "checkpoint", "kernels"}),
    "parallel": frozenset({"facts"}),
    "checkpoint": frozenset({"facts"}),
    "measure": frozenset({"facts"}),
    "techniques": frozenset({"facts", "kernels", "data", "parallel"}),
    "training": frozenset({"facts", "data", "parallel", "checkpoint", "techniques"}),
    "doctor": frozenset({"facts", "checkpoint", "measure", "techniques", "training"}),
    "tune": frozenset({"facts", "measure", "checkpoint", "techniques", "training", "doctor"}),
    "report": frozenset({"facts"}),
}
OPEN_TO_ALL = frozenset({"errors", "stop_signals"})
MAY_IMPORT_ALL = frozenset({"__init__", "__main__", "cli", "entry"})

FOLDERS_OF_RULES = tuple(f"{PACKAGE}doctor/{name}/" for name in ("rules", "model_rules", "run_rules"))
LINES_OF_A_MODULE = 400
LINES_OF_A_TECHNIQUE = 150
LINES_OF_A_FUNCTION = 60

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


@dataclass(frozen=True)
class Source:
    """One Python file: its path from the repository's root, with forward slashes, and its text."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    @cached_property
    def module(self) -> str:
        """The dotted name: hasten.training.step; a package is named without its __init__."""
        parts = self.path.removeprefix("src/").removesuffix(".py").split("/")
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @property
    def room(self) -> str:
        """The first name under the package: a folder, or a module that stands alone."""
        return self.path.removeprefix(PACKAGE).partition("/")[0].removesuffix(".py")

    @property
    def is_package(self) -> bool:
        return self.path.endswith("/__init__.py")

    @property
    def is_technique(self) -> bool:
        """True for a file that ends with the record TECHNIQUE, which makes it a technique whatever its name."""
        return self.room == "techniques" and any(
            _is_name(target, "TECHNIQUE") for node in self.tree.body for target in _targets(node)
        )

    @cached_property
    def names(self) -> dict[str, str]:
        """What each imported name stands for: {"np": "numpy", "sleep": "time.sleep"}."""
        found: dict[str, str] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    first = alias.name.partition(".")[0]
                    found[alias.asname or first] = alias.name if alias.asname else first
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    found[alias.asname or alias.name] = f"{origin(self, node)}.{alias.name}"
        return found


@dataclass(frozen=True)
class Fault:
    source: Source
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.source.path}:{self.line}: {self.what}"


def sources(*folders: str) -> list[Source]:
    """Every Python file under these folders of the repository, sorted by path; a missing folder has none. The corpus of
    the doctor is data: scripts as other people write them."""
    found = (path for folder in folders for path in (REPOSITORY / folder).rglob("*.py"))
    paths = sorted(path for path in found if "corpus" not in path.parts)
    return [Source(path.relative_to(REPOSITORY).as_posix(), path.read_text(encoding="utf-8")) for path in paths]


def imports(source: Source) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every import of this package, wherever it stands: in a function, under TYPE_CHECKING, or
    as a string for import_module. A name that is imported from a module is part of the dotted name."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{origin(source, node)}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and called(source, node) in ("importlib.import_module", "__import__"):
            names = [item.value for item in node.args if isinstance(item, ast.Constant) and isinstance(item.value, str)]
        else:
            continue
        yield from ((node.lineno, name) for name in names if name.split(".")[0] == "hasten")


def check_rooms(source: Source) -> Iterator[Fault]:
    """A room imports only what the table allows it, and every file belongs to a room of the table."""
    if source.room in MAY_IMPORT_ALL:
        return
    if source.room not in MAY_IMPORT:
        yield Fault(source, 1, f"{source.room} is no room of the table MAY_IMPORT")
        return
    allowed = MAY_IMPORT[source.room] | OPEN_TO_ALL | {source.room}
    for line, name in imports(source):
        room = [*name.split("."), "the whole package"][1]
        if room not in allowed:
            yield Fault(source, line, f"{source.room} may not import {room} ({name})")


def check_technique_files(source: Source, techniques: Iterable[Source]) -> Iterator[Fault]:
    """Only the package's own list of techniques imports a technique file."""
    if source.room != "techniques" or source.is_package:
        return
    others = {technique.module for technique in techniques} - {source.module}
    for line, name in imports(source):
        if name in others or name.rpartition(".")[0] in others:
            yield Fault(source, line, f"imports the technique {name}; techniques know nothing of each other")


def check_budgets(source: Source) -> Iterator[Fault]:
    """No file and no function is longer than its budget, docstrings and blank lines included."""
    small = source.is_technique or source.path.startswith(FOLDERS_OF_RULES)
    allowed, length = LINES_OF_A_TECHNIQUE if small else LINES_OF_A_MODULE, len(source.text.splitlines())
    if length > allowed:
        yield Fault(source, allowed + 1, f"has {length} lines; {allowed} are allowed")
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > LINES_OF_A_FUNCTION:
                yield Fault(source, node.lineno, f"{node.name} has {length} lines; {LINES_OF_A_FUNCTION} are a screen")


def check_docstring(source: Source) -> Iterator[Fault]:
    """Every module says what it is for."""
    if not (ast.get_docstring(source.tree) or "").strip():
        yield Fault(source, 1, "has no module docstring")


def check_writes(source: Source) -> Iterator[Fault]:
    """Only one file changes what is on disk. Reading is free to all."""
    if source.path == ONLY_DOOR_TO_DISK:
        return
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.Call):
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


def check_handlers(source: Source) -> Iterator[Fault]:
    """No signal handler raises, nor what it calls in its file: the error could surface in any line of any library."""
    functions: dict[str, list[ast.FunctionDef]] = {}
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef):
            functions.setdefault(node.name, []).append(node)
    waiting = [name for node in ast.walk(source.tree) for name in _handlers(source, node)]
    seen = set[str]()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        for node in [each for function in functions.get(name, []) for each in _own_nodes(function)]:
            if isinstance(node, ast.Raise):
                yield Fault(source, node.lineno, f"{name} is, or serves, a signal handler; set a flag or wake a wait")
            elif isinstance(node, ast.Call):
                waiting.append(_last_name(node.func))


def _handlers(source: Source, node: ast.AST) -> Iterator[str]:
    """The names of the functions that a call installs: by signal.signal, or by what the package has for it."""
    if not isinstance(node, ast.Call):
        return
    if called(source, node) not in ("signal.signal", "hasten.stop_signals.listening"):
        return
    for given in [*node.args[1:], *(keyword.value for keyword in node.keywords)]:
        for each in ast.walk(given):  # a name, a method, a lambda that calls it, a partial of it
            if isinstance(each, ast.Name | ast.Attribute):
                yield _last_name(each)


def _own_nodes(function: ast.FunctionDef) -> Iterator[ast.AST]:
    """Without those of the functions that are defined inside."""
    waiting = [*function.body]
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, ast.FunctionDef):
            waiting += ast.iter_child_nodes(node)


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def check_sleeps(source: Source) -> Iterator[Fault]:
    """A test waits for what it needs, never for a time."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call) and called(source, node) in ("time.sleep", "asyncio.sleep"):
            yield Fault(source, node.lineno, "sleeps; wait for the event itself")


def traps(source: Source) -> set[int]:
    """The numbers of all traps that a test of this file is tagged with, by decorator or for the whole module."""
    marked: list[ast.expr] = []
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name.lower().startswith("test"):
            marked += node.decorator_list
        elif isinstance(node, ast.Assign) and any(_is_name(target, "pytestmark") for target in node.targets):
            marked.append(node.value)
    calls = [node for tree in marked for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return {
        item.value
        for call in calls
        if called(source, call) == "pytest.mark.trap"
        for item in call.args
        if isinstance(item, ast.Constant) and isinstance(item.value, int)
    }


def called(source: Source, call: ast.Call) -> str:
    """The dotted name of what is called, with imported names resolved; empty for what has no such name."""
    return dotted(source, call.func)


def dotted(source: Source, node: ast.expr) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join([source.names.get(node.id, node.id), *reversed(parts)]).removeprefix("builtins.")


def origin(source: Source, node: ast.ImportFrom) -> str:
    """The module that a from-import takes its names from, relative ones resolved."""
    if not node.level:
        return node.module or ""
    parts = source.module.split(".")
    base = parts[: len(parts) - node.level + source.is_package]
    return ".".join([*base, *([node.module] if node.module else [])])


def _targets(node: ast.stmt) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, ast.AnnAssign) else []


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


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
