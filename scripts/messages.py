"""The page docs/reference/messages.md: the help of every command, and the text of every error with its exit code.

The errors are read from the syntax tree: wherever the package creates one of the classes of hasten.errors, its text is
a template, in which ‹name› stands for a value that only the running program knows.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hasten import errors

SOURCE = Path(__file__).resolve().parent.parent / "src" / "hasten"
HEAD = (
    "<!-- Written by `make docs` from src/hasten; change that instead. -->",
    "",
    "# Messages",
    "",
    "The help of every command, and the text of every error. ‹name› stands for a value. An error says where it failed,",
    "what failed, and after the arrow what to do; a bar separates texts of which one is printed.",
)
LONGEST_NAME = 40


@dataclass(frozen=True, order=True)
class Message:
    """An error that the package creates. file: of src/hasten."""

    file: str
    line: int
    kind: str
    text: str


def page_of_messages(commands: Sequence[str]) -> str:
    """commands: the lines about them, from their help."""
    lines = [*HEAD, "", "## Commands", *(f"#{line}" if line.startswith("## ") else line for line in commands)]
    lines += ["", "## Errors"]
    found = list(messages())
    for name, kind in kinds().items():
        texts = dict.fromkeys((each.text, each.file) for each in sorted(found) if each.kind == name)
        if texts:
            lines += ["", f"### {name}, exit code {kind.exit_code}", ""]
            lines += [f"* {text} <sub>{file}</sub>" for text, file in texts]
    return "\n".join([*lines, ""])


def kinds() -> dict[str, type[errors.HastenError]]:
    """The classes of errors, in the order of hasten.errors; that of another rank has that rank's code."""
    found = {name: each for name, each in vars(errors).items() if isinstance(each, type)}
    return {
        name: each
        for name, each in found.items()
        if issubclass(each, errors.HastenError) and each not in (errors.HastenError, errors.RankFailed)
    }


def messages(folder: Path = SOURCE) -> Iterator[Message]:
    for path in sorted(folder.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        tree = _Named(_constants(tree)).visit(tree)
        names = _imported(tree)
        for scope, call in _calls(tree, tree):
            kind = names.get(call.func.id) if isinstance(call.func, ast.Name) else None
            if kind is not None:
                yield Message(path.relative_to(folder).as_posix(), call.lineno, kind, text_of(kind, call, scope))


def _imported(tree: ast.Module) -> dict[str, str]:
    """The local name of each class of hasten.errors, and its own."""
    return {
        alias.asname or alias.name: alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "hasten.errors"
        for alias in node.names
        if alias.name in kinds()
    }


def _calls(node: ast.AST, scope: ast.AST) -> Iterator[tuple[ast.AST, ast.Call]]:
    """Every call, with the function that it is in."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call):
            yield scope, child
        inner = child if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) else scope
        yield from _calls(child, inner)


def _constants(tree: ast.Module) -> dict[str, str]:
    """Texts that a module gives a name."""
    return {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


class _Named(ast.NodeTransformer):
    """Puts a module's texts in the place of their names."""

    def __init__(self, texts: dict[str, str]) -> None:
        self.texts = texts

    def visit_Name(self, node: ast.Name) -> ast.expr:
        known = isinstance(node.ctx, ast.Load) and node.id in self.texts
        return ast.copy_location(ast.Constant(self.texts[node.id]), node) if known else node


def text_of(kind: str, call: ast.Call, scope: ast.AST) -> str:
    names = ("field", "was", "write") if kind == "JobError" else ("what", "where", "fix")
    given = dict(zip(names, call.args, strict=False))
    given |= {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
    texts = {name: template(value, scope) for name, value in given.items()}
    if kind == "JobError":
        field = texts.get("field")
        texts = {"where": f"Job.{field}" if field else "Job", "what": texts["was"], "fix": texts["write"]}
    place = f"`{texts['where']}`: " if texts.get("where") else ""
    remedy = f" → {texts['fix']}" if texts.get("fix") else ""
    return _as_text(f"{place}{texts.get('what', '‹…›')}{remedy}")


def template(node: ast.expr, scope: ast.AST, depth: int = 3) -> str:
    """The text of an expression; several that it may be are separated by a bar."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(template(part, scope, depth) for part in parts)
        case ast.FormattedValue(value=value):
            return template(value, scope, 0)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return template(left, scope, depth) + template(right, scope, depth)
        case ast.IfExp(body=body, orelse=other):
            texts = dict.fromkeys((template(body, scope, depth), template(other, scope, depth)))
            return " | ".join(filter(None, texts))
        case ast.Call(func=ast.Attribute(attr="get"), args=[_, otherwise]):
            return template(otherwise, scope, depth)
        case ast.Name(id=name) if depth:
            texts = dict.fromkeys(template(value, scope, depth - 1) for value in _assigned(name, scope))
            return " | ".join(filter(None, texts)) or f"‹{_spoken(name)}›"
    return f"‹{_spoken(_name(node))}›"


def _assigned(name: str, scope: ast.AST) -> Iterator[ast.expr]:
    """What a function assigns to a name, also as one of several at once."""
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name) and target.id == name:
                    yield node.value
                elif isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs = zip(target.elts, node.value.elts, strict=False)
                    yield from (value for one, value in pairs if isinstance(one, ast.Name) and one.id == name)


def _name(node: ast.expr) -> str:
    """The last name in an expression, which says best what it is."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(attr=name):
            return name
        case ast.Call(func=ast.Attribute(attr="join"), args=[joined]):
            return _name(joined)
        case ast.Call(args=[first, *_]) if not isinstance(first, ast.Constant):
            return _name(first)
        case ast.Call(func=function):
            return _name(function)
        case ast.Subscript(value=value) | ast.Starred(value=value) | ast.Await(value=value):
            return _name(value)
        case ast.BinOp(left=left):
            return _name(left)
        case ast.GeneratorExp(elt=part) | ast.ListComp(elt=part) | ast.SetComp(elt=part):
            return _name(part)
        case ast.IfExp(body=body):
            return _name(body)
    return "…"


def _spoken(name: str) -> str:
    return name.strip("_").replace("_", " ")[:LONGEST_NAME] or "…"


def _as_text(text: str) -> str:
    """For a list in Markdown: one line, in which nothing is a tag or the end of the item."""
    return " ".join(text.replace("<", "&lt;").split())
