"""How large files, functions and folders may be, and what a file is called."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Collection, Iterable, Iterator

from shape.source import PACKAGE, Fault, Source

FOLDERS_OF_RULES = tuple(f"{PACKAGE}doctor/{name}/" for name in ("rules", "model_rules", "run_rules"))
FILES_OF_A_FOLDER = 15
LINES_OF_A_MODULE = 400
LINES_OF_A_TECHNIQUE = 150
LINES_OF_A_FUNCTION = 60


def check_budgets(source: Source) -> Iterator[Fault]:
    """No file and no function is longer than its budget, docstrings and blank lines included."""
    small = source.is_technique or source.path.startswith(FOLDERS_OF_RULES)
    allowed, length = LINES_OF_A_TECHNIQUE if small else LINES_OF_A_MODULE, len(source.text.splitlines())
    if length > allowed:
        yield Fault(source, allowed + 1, f"has {length} lines; {allowed} are allowed")
    for node in _functions(source.tree.body):
        length = (node.end_lineno or node.lineno) - node.lineno + 1
        if length > LINES_OF_A_FUNCTION:
            yield Fault(source, node.lineno, f"{node.name} has {length} lines; {LINES_OF_A_FUNCTION} are a screen")


def _functions(body: Iterable[ast.AST]) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Those in these statements, and in what the statements contain."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            yield from _functions(getattr(node, part, ()))


def check_folders(paths: Iterable[str], techniques: Collection[str]) -> Iterator[Fault]:
    """No folder holds more files than a newcomer can take in. Rules, techniques and the tests of techniques are tables,
    of which every entry is a file. techniques: their names."""
    entries = {f"{PACKAGE}techniques/{name}.py" for name in techniques}
    entries |= {f"tests/techniques/test_{name}.py" for name in techniques}
    listed = [path for path in paths if path not in entries and not path.startswith(FOLDERS_OF_RULES)]
    for folder, count in Counter(path.rpartition("/")[0] for path in listed).items():
        if count > FILES_OF_A_FOLDER:
            what = f"holds {count} files; {FILES_OF_A_FOLDER} are allowed, so divide it by subject"
            yield Fault(Source(folder, ""), 1, what)


def check_basenames(sources: Iterable[Source]) -> Iterator[Fault]:
    """A file's name is found once in the package. Techniques are named after what a plan says."""
    named = [each for each in sources if not each.is_package and not each.is_technique]
    seen: dict[str, Source] = {}
    for source in named:
        name = source.path.rpartition("/")[2]
        if name in seen:
            yield Fault(source, 1, f"has the name of {seen[name].path}; let it say the room's own subject")
        seen.setdefault(name, source)
