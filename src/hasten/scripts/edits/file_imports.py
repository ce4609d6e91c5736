"""Imports at the top of a file: what they bind, and where another one belongs."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence

from hasten.doctor.edits import Splice
from hasten.scripts.edits.statement_lines import Statements

Import = ast.Import | ast.ImportFrom


def import_splices(file: Statements, module: str, names: Sequence[str]) -> Iterator[Splice]:
    """None for what the file has."""
    if not names:
        if not _binds(_early(file.tree), module):
            yield _with_module(file, module)
        return
    found = next((each for each in _of_top(file.tree) if _is_from(each, module)), None)
    missing = [name for name in names if name not in _names_from(file.tree, module)]
    if missing and isinstance(found, ast.ImportFrom):
        yield from (_with_name(file, found, name) for name in missing)
    elif missing:
        yield _behind_imports(file, [f"from {module} import {', '.join(missing)}"])


def header_splice(file: Statements, lines: Sequence[str]) -> Splice:
    """Statements behind the imports, an empty line between."""
    return _behind_imports(file, ["", *lines], is_block=True)


def _behind_imports(file: Statements, lines: Sequence[str], *, is_block: bool = False) -> Splice:
    """Behind those that stand together with the first import of torch, as what comes before them can be meant for it:
    an environment variable."""
    block = _block(file.tree)
    if block:
        follows = file.text.line((block[-1].end_lineno or 0) + 1).strip()
        return file.behind(block[-1], [*lines, ""] if is_block and follows else lines)
    rest = file.tree.body[1:] if _has_docstring(file.tree) else file.tree.body
    return file.before(rest[0], [*lines[1:], ""] if is_block else [*lines, ""])


def _block(tree: ast.Module) -> list[Import]:
    """Imports that stand together: with that of torch, or else the first ones."""
    blocks, before = list[list[Import]](), None
    for each in tree.body:
        if isinstance(each, Import):
            if not isinstance(before, Import):
                blocks.append([])
            blocks[-1].append(each)
        before = each
    return next((block for block in blocks if any(map(_is_of_torch, block))), blocks[0] if blocks else [])


def _with_module(file: Statements, module: str) -> Splice:
    """In the order of the alphabet among the imports of its kind: of Python itself, or of torch."""
    line, block = f"import {module}", _block(file.tree)
    if module == "torch":
        first = next((each for each in block if _is_of_torch(each)), None)
        return _behind_imports(file, [line]) if first is None else file.before(first, [line])
    plain = [each for each in _early(file.tree) if isinstance(each, ast.Import)]
    beside = [each for each in plain if _root(each) in sys.stdlib_module_names]
    after = next((each for each in beside if each.names[0].name > module), None)
    if after is not None:
        return file.before(after, [line])
    if beside:
        return file.behind(beside[-1], [line])
    first = next((each for each in _of_top(file.tree) if not _is_from(each, "__future__")), file.tree.body[0])
    return file.before(first, [line], behind=file.newline)


def _with_name(file: Statements, found: ast.ImportFrom, name: str) -> Splice:
    """In the order of the alphabet where the names have it, or else behind the last one."""
    given = [each.name for each in found.names]
    after = next((each for each in found.names if each.name > name), None) if given == sorted(given) else None
    beside = found.names[-1] if after is None else after
    number, column = beside.lineno, beside.col_offset
    begin, end = file.text.span(beside)
    before = file.text.line(number).encode()[:column].decode()
    between = f",{file.newline}{before}" if not before.strip() else ", "
    return Splice(end, end, f"{between}{name}") if after is None else Splice(begin, begin, f"{name}{between}")


def _of_top(tree: ast.Module) -> list[Import]:
    return [each for each in tree.body if isinstance(each, Import)]


def _early(tree: ast.Module) -> list[Import]:
    """Those that statements behind the imports can use: later ones are not made yet."""
    found, block = _of_top(tree), _block(tree)
    return found[: found.index(block[-1]) + 1] if block else found


def _binds(imports: Sequence[Import], module: str) -> bool:
    """`import a.b` binds a, `import a.b as c` does not."""
    plain = [alias for each in imports if isinstance(each, ast.Import) for alias in each.names]
    return any(alias.asname in (None, module) and alias.name.partition(".")[0] == module for alias in plain)


def _names_from(tree: ast.Module, module: str) -> set[str]:
    found = [each for each in _of_top(tree) if _is_from(each, module)]
    return {alias.name for each in found for alias in each.names if alias.asname in (None, alias.name)}


def _is_from(statement: ast.stmt, module: str) -> bool:
    return isinstance(statement, ast.ImportFrom) and statement.module == module and not statement.level


def _is_of_torch(statement: ast.stmt) -> bool:
    return isinstance(statement, Import) and _root(statement) == "torch"


def _root(statement: Import) -> str:
    """The package of a relative import is ""."""
    name = statement.names[0].name if isinstance(statement, ast.Import) else statement.module or ""
    return "" if isinstance(statement, ast.ImportFrom) and statement.level else name.partition(".")[0]


def _has_docstring(tree: ast.Module) -> bool:
    return ast.get_docstring(tree, clean=False) is not None and len(tree.body) > 1
