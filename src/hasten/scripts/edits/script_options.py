"""Options of the script's own command line, which a patch must not disable.

`DataLoader(num_workers=args.workers)` would become `num_workers=2`, and `--workers` would be without effect. Where one
`add_argument("--workers", type=int, default=0)` of the same file defines it, its default is changed instead. Where
that option was given on the command line, its default decides nothing: the call itself is changed, and the result says
which option that disables. So is it where the file leaves a doubt.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace

from hasten.scripts.edits.edit import AddImport, AddToHeader, Edit, SetKeywords
from hasten.scripts.edits.source_places import call_at, place_of, read_source

_SWITCH = {"action": "argparse.BooleanOptionalAction", "default": "True"}  # --no-bf16 is then its opposite
_PLAIN = frozenset({"type", "default", "help", "choices", "metavar", "dest"})
_TYPES = {"int": int, "float": float, "str": str}
_WITH_WORKERS = {"persistent_workers": "{workers} > 0", "prefetch_factor": "{value} if {workers} > 0 else None"}
"""Arguments that a DataLoader without workers refuses."""
_PARSING = frozenset({"parse_args", "parse_known_args", "parse_intermixed_args"})
_NOT_ALWAYS = (
    *(ast.If, ast.IfExp, ast.BoolOp, ast.Match, ast.ExceptHandler),
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef),
)
_USUAL_NAMES = frozenset({"args", "flags", "hparams", "opt", "opts", "options"})


@dataclass(frozen=True, slots=True)
class _Option:
    flags: tuple[str, ...]
    call: ast.Call
    keywords: dict[str, ast.expr]

    @property
    def attribute(self) -> str:
        match self.keywords.get("dest"):
            case ast.Constant(str(name)):
                return name
            case _:
                long = next((each for each in self.flags if each.startswith("--")), self.flags[0])
                return long.lstrip("-").replace("-", "_")

    @property
    def name(self) -> str:
        return max(self.flags, key=len)

    def is_given(self, names: Sequence[str]) -> bool:
        """An option may be abbreviated."""
        return any(flag.startswith(each) for flag in self.flags for each in names)

    def keywords_for(self, source: str) -> dict[str, str]:
        """Of add_argument, that make this its default; empty where it may not take it."""
        expression, names = ast.parse(source, mode="eval").body, self.keywords.keys()
        value = expression.value if isinstance(expression, ast.Constant) else None
        match self.keywords.get("action"):
            case ast.Constant("store_true") if value is True and names <= {"action", "default", "help", "dest"}:
                return _SWITCH
            case None if names <= _PLAIN and self._takes(value):
                return {"default": source}
            case _:
                return {}

    def _takes(self, value: object) -> bool:
        kind = ast.unparse(self.keywords["type"]) if "type" in self.keywords else "str"
        match self.keywords.get("choices"):
            case None:
                allowed = True
            case ast.List(each) | ast.Tuple(each):
                allowed = value in [one.value for one in each if isinstance(one, ast.Constant)]
            case _:
                allowed = False
        return allowed and type(value) is _TYPES.get(kind)


def given_names(words: Sequence[str]) -> tuple[str, ...]:
    """Names of the options on a command line, without their values: -j4 is -j."""
    names = (each.partition("=")[0] if each.startswith("--") else each[:2] for each in words if each.startswith("-"))
    return tuple(dict.fromkeys(each for each in names if each.strip("-")))


def with_own_settings(text: str, edits: Sequence[Edit], given: Sequence[str]) -> list[Edit]:
    """The edits of one file, made where it sets the same itself. given: names of the options that it was given when it
    was observed. Raises PlanError where a call is not found."""
    tree, found = read_source(text), list[Edit]()
    for edit in edits:
        for one in _own_calls(tree, edit) if isinstance(edit, AddToHeader) else [edit]:
            kept = _with_defaults(tree, one, given) if isinstance(one, SetKeywords) else [one]
            found += [each for each in kept if each not in found]
    return found


def _own_calls(tree: ast.Module, header: AddToHeader) -> Iterator[Edit]:
    """Of a statement such as torch.set_num_threads(2), the call by which the file would replace its value later."""
    lines = list[str]()
    for statement in ast.parse("\n".join(header.lines)).body:
        own = list[ast.Call]()
        match statement:
            case ast.Expr(ast.Call(function, [value], [])):
                called = {ast.unparse(each.func) for each in ast.walk(tree) if isinstance(each, ast.Call)}
                calls = [each for each in _reached(tree, called) if len(each.args) == 1]
                own = [each for each in calls if ast.unparse(each.func) == ast.unparse(function)]
                if len(own) == 1:
                    keywords = {"value": ast.unparse(value)}
                    yield SetKeywords(call=place_of(own[0], header.file), keywords=keywords, positions=("value",))
            case _:
                pass
        if len(own) != 1:
            lines += header.lines[statement.lineno - 1 : statement.end_lineno]
    if lines:
        yield replace(header, lines=tuple(lines))


def _reached(node: ast.AST, called: Set[str]) -> Iterator[ast.Call]:
    """Calls that the main process makes whatever its options are: below no condition, and in no function that the file
    itself does not call, such as a worker_init_fn."""
    match node:
        case ast.If(test, body) if "__name__" in ast.unparse(test):
            parts: Iterable[ast.AST] = body
        case ast.FunctionDef(name, _, body) if name in called:
            parts = body
        case _ if isinstance(node, _NOT_ALWAYS):
            parts = []
        case _:
            parts = ast.iter_child_nodes(node)
    if isinstance(node, ast.Call):
        yield node
    for each in parts:
        yield from _reached(each, called)


def _with_defaults(tree: ast.Module, edit: SetKeywords, given: Sequence[str]) -> Iterator[Edit]:
    """Instead of an argument that is an option's value, the default of that."""
    call, keywords = call_at(tree, edit.call), dict(edit.keywords)
    arguments = dict[str, ast.expr](zip(edit.positions, call.args, strict=False))
    arguments |= {each.arg: each.value for each in call.keywords if each.arg is not None}
    for name, source in edit.keywords.items():
        option = None if name.removeprefix("dataloader_") in _WITH_WORKERS else _read_by(tree, arguments.get(name))
        if option is None or option.is_given(given) or not (changes := option.keywords_for(source)):
            continue
        if changes == _SWITCH and not _can_have_opposite(option, tree):
            continue
        if changes == _SWITCH:
            yield AddImport(file=edit.call.file, module="argparse")
        yield SetKeywords(call=place_of(option.call, edit.call.file), keywords=changes)
        del keywords[name]
    for prefix in ("", "dataloader_"):  # transformers' names
        workers = arguments.get(f"{prefix}num_workers")
        if f"{prefix}num_workers" in keywords or not isinstance(workers, ast.Name | ast.Attribute):
            continue
        for name, text in _WITH_WORKERS.items():
            if (value := keywords.get(f"{prefix}{name}")) is not None:
                keywords[f"{prefix}{name}"] = text.format(workers=ast.unparse(workers), value=value)
    if keywords or edit.without:
        yield replace(edit, keywords=keywords)


def without_effect(before: str, after: str) -> list[str]:
    """Options that a source read before it was edited, and reads no more."""
    tree = read_source(before)
    read = _attributes(tree, ast.Load) - _attributes(read_source(after), ast.Load)
    return [*dict.fromkeys(each.name for each in _options(tree) if each.attribute in read)]


def _read_by(tree: ast.Module, node: ast.expr | None) -> _Option | None:
    """The option whose value an expression like args.workers is; None where the file leaves a doubt."""
    if not isinstance(node, ast.Attribute) or node.attr in _attributes(tree, ast.Store):
        return None
    if ast.unparse(node.value).rpartition(".")[2] not in _names_of_options(tree):
        return None
    defaults = (each for each in _calls(tree, "set_defaults") for each in each.keywords)
    if any(each.arg in (None, node.attr) for each in defaults):
        return None
    found = [each for each in _options(tree) if each.attribute == node.attr]
    return found[0] if len(found) == 1 else None


def _names_of_options(tree: ast.Module) -> set[str]:
    """Names that get the result of a call that parses, or of a function of the file that makes one; and the usual
    names."""
    found, parsing = set(_USUAL_NAMES), set(_PARSING)
    parsing |= {each.name for each in ast.walk(tree) if isinstance(each, ast.FunctionDef) and _is_called(parsing, each)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None and _is_called(parsing, node.value):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            named = [each for target in targets for each in ast.walk(target)]
            found |= {each.id for each in named if isinstance(each, ast.Name)}
            found |= {each.attr for each in named if isinstance(each, ast.Attribute)}
    return found


def _is_called(names: Set[str], within: ast.AST) -> bool:
    calls = (each.func for each in ast.walk(within) if isinstance(each, ast.Call))
    return any(ast.unparse(each).rpartition(".")[2] in names for each in calls)


def _can_have_opposite(option: _Option, tree: ast.Module) -> bool:
    """argparse gives one to long names only, and the script may have that itself."""
    opposites = {f"--no-{each.removeprefix('--')}" for each in option.flags if each.startswith("--")}
    return bool(opposites) and opposites.isdisjoint(flag for each in _options(tree) for flag in each.flags)


def _options(tree: ast.Module) -> list[_Option]:
    found = list[_Option]()
    for call in _calls(tree, "add_argument"):
        flags = [each.value for each in call.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
        if flags and len(flags) == len(call.args) and all(each.startswith("-") for each in flags):
            keywords = {each.arg or "": each.value for each in call.keywords}
            found.append(_Option(tuple(flags), call, keywords))
    return found


def _calls(tree: ast.Module, method: str) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == method:
            yield node


def _attributes(tree: ast.Module, used: type[ast.expr_context]) -> set[str]:
    return {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, used)}
