"""Makes edits in a source by replacing characters: comments, line ends and formatting stay."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from hasten.doctor.edits import AddArgument, Append, Replace, Splice, Unspliceable, is_python, spliced, splices_of
from hasten.errors import PlanError
from hasten.scripts.edits.built_mappings import has_no_key
from hasten.scripts.edits.edit import (
    AddDefinition,
    AddImport,
    AddLines,
    AddToHeader,
    Decorate,
    Edit,
    Fix,
    ReplaceCall,
    SetDefaults,
    SetKeywords,
    WrapArguments,
    WrapLoop,
    WrapStatements,
)
from hasten.scripts.edits.file_imports import header_splice, import_splices
from hasten.scripts.edits.source_places import Function, call_at, loop_at, read_source
from hasten.scripts.edits.statement_lines import Statements

Argument = ast.expr | ast.keyword
_BEHIND_LAST = re.compile(r"[ \t]*(,?)[ \t]*(#.*)?")  # on the line of a last argument


def edited_source(text: str, edits: Sequence[Edit]) -> str:
    """Raises PlanError where a call is not found or an edit cannot be written."""
    after = _edited(text, [each for each in edits if not isinstance(each, AddImport)])
    for each in edits:
        if isinstance(each, AddImport):  # in the alphabet's order, among those that were added before
            after = _edited(after, [each])
    return after


def _edited(text: str, edits: Sequence[Edit]) -> str:
    file, found = Statements(text, read_source(text)), list[Splice]()
    for edit in edits:
        try:
            found += _splices(file, edit)
        except Unspliceable as error:
            what = f"has no place for {type(edit).__name__}: other code or a comment is on the same line"
            raise PlanError(what) from error
    replaced = sorted((each.begin, each.end) for each in found if each.begin < each.end)
    after = spliced(text, found)
    if any(end > begin for (_, end), (begin, _) in pairwise(replaced)) or not is_python(after):
        raise PlanError("has a place where two edits cannot be made together")
    return after


def _splices(file: Statements, edit: Edit) -> Iterable[Splice]:
    text = file.text.text
    match edit:
        case SetKeywords(call=place):
            return _with_keywords(file, call_at(file.tree, place), edit)
        case SetDefaults(call=place, keywords=keywords):
            call = call_at(file.tree, place)
            return [file.before(file.around(call)[-1], [f"{_parser(call)}.set_defaults({_written(keywords)})"])]
        case ReplaceCall(call=place, source=source):
            return splices_of(Replace(call_at(file.tree, place), source), text)
        case WrapArguments(call=place, positions=positions, method=method):
            arguments = _by_position(call_at(file.tree, place), positions)
            return [splice for each in arguments for splice in splices_of(Append(each, f".{method}"), text)]
        case AddLines(call=place, lines=lines, where=where):
            statement = file.around(call_at(file.tree, place))[-1]
            if where == "after":
                return [file.behind(statement, lines)]
            return [file.before(statement, lines, behind=file.newline if file.is_under_a_title(statement) else "")]
        case AddDefinition(call=place, lines=lines):
            statement = file.around(call_at(file.tree, place))[0]
            return [file.before(statement, [*lines, "", ""])]
        case AddImport(module=module, names=names):
            return import_splices(file, module, names)
        case AddToHeader(lines=lines):
            if {*lines} <= {*text.splitlines()}:
                raise PlanError("the script has these lines already")
            return [header_splice(file, lines)]
        case WrapStatements():
            return file.wrapped(_statements_between(file, edit), edit.context)
        case WrapLoop(call=place, context=context):
            return file.wrapped(file.around(loop_at(file.tree, place))[-1:], context)
        case Decorate(call=place, decorator=decorator):
            functions = [each for each in file.around(loop_at(file.tree, place)) if isinstance(each, Function)]
            return [file.decorated(functions[-1], decorator)]
        case Fix(edits=edits):
            return [splice for each in edits for splice in splices_of(each, text)]


def _parser(call: ast.Call) -> str:
    if not isinstance(call.func, ast.Attribute) or not isinstance(call.func.value, ast.Name | ast.Attribute):
        raise PlanError("the argument parser has no name where it parses")
    return ast.unparse(call.func.value)


def _written(keywords: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={source}" for name, source in keywords.items())


def _statements_between(file: Statements, edit: WrapStatements) -> list[ast.stmt]:
    """Of one block, the innermost that has both."""
    first, last = (file.around(call_at(file.tree, each)) for each in (edit.first, edit.last))
    for body in file.bodies():
        begin = next((number for number, each in enumerate(body) if each in first), None)
        end = next((number for number, each in enumerate(body) if each in last), None)
        if begin is not None and end is not None and begin < end:
            return _as_far_as_needed(body[begin:end], call_at(file.tree, edit.last))
    raise PlanError("has forward and backward in one statement, so nothing can end between them")


def _as_far_as_needed(statements: list[ast.stmt], call: ast.Call) -> list[ast.stmt]:
    """Up to the last one that computes what a call uses; all where none is seen to. What logs a loss is not in it."""
    used = {ast.unparse(each) for each in ast.walk(call) if isinstance(each, ast.Name | ast.Attribute)}

    def computes(statement: ast.stmt) -> bool:
        for each in ast.walk(statement):
            match each:
                case ast.Name(ctx=ast.Store()) | ast.Attribute(ctx=ast.Store()) if ast.unparse(each) in used:
                    return True
                case ast.Subscript(value, ctx=ast.Store()) if ast.unparse(value) in used:
                    return True
                case ast.Call(ast.Attribute(owner, name)) if ast.unparse(owner) in used and name not in _READS:
                    return True
                case _:
                    pass
        return False

    needed = [number for number, each in enumerate(statements) if computes(each)]
    return statements[: needed[-1] + 1] if needed else statements


_READS = frozenset({"cpu", "detach", "item", "numel", "size", "tolist"})


def _by_position(call: ast.Call, positions: Sequence[int]) -> list[ast.expr]:
    written = len(next((call.args[:n] for n, each in enumerate(call.args) if isinstance(each, ast.Starred)), call.args))
    for position in positions:
        if position >= written:
            raise PlanError(f"argument {position + 1} of the call is not written at its place")
    return [call.args[position] for position in positions]


# ── named arguments ─────────────────────────────────────────────────────────────────────────────────────────────────


def _with_keywords(file: Statements, call: ast.Call, edit: SetKeywords) -> Iterator[Splice]:
    given = dict[str, Argument](zip(edit.positions, call.args, strict=False))
    given |= {each.arg: each for each in call.keywords if each.arg is not None}
    for name, source in edit.keywords.items():
        if (node := given.get(name)) is not None:
            yield from splices_of(
                Replace(node.value if isinstance(node, ast.keyword) else node, source), file.text.text
            )
    mapping = next((each.value for each in reversed(call.keywords) if each.arg is None), None)
    if mapping is not None and not all(each in given or has_no_key(file.tree, mapping, each) for each in edit.keywords):
        yield from _in_mapping(file, mapping, {name: each for name, each in edit.keywords.items() if name not in given})
        given |= dict.fromkeys(edit.keywords, mapping)
    equals = _equals(file, call)
    new = [f"{name}{equals}{source}" for name, source in edit.keywords.items() if name not in given]
    old = [given[name] for name in edit.without if name in given]
    for node, argument in zip(old, new, strict=False):
        yield from splices_of(Replace(node, argument), file.text.text)
    for node in old[len(new) :]:
        yield _removed(file, call, node)
    if added := new[len(old) :]:
        yield from _added(file, call, added)


def _equals(file: Statements, call: ast.Call) -> str:
    """As its last named argument writes it."""
    named = [each for each in call.keywords if each.arg is not None]
    if not named or named[-1].arg is None:
        return "="
    (begin, _), (value, _) = file.text.span(named[-1]), file.text.span(named[-1].value)
    return " = " if file.text.text[begin + len(named[-1].arg) : value] == " = " else "="


def _in_mapping(file: Statements, mapping: ast.expr, keywords: Mapping[str, str]) -> Iterable[Splice]:
    """Of `**mapping`, which can have these names: `**{**mapping, "num_workers": 2}`."""
    if not keywords:
        return []
    begin, end = file.text.span(mapping)
    added = ", ".join(f'"{name}": {source}' for name, source in keywords.items())
    return splices_of(Replace(mapping, f"{{**{file.text.text[begin:end]}, {added}}}"), file.text.text)


def _in_order(call: ast.Call) -> list[Argument]:
    return sorted([*call.args, *call.keywords], key=lambda each: (each.lineno, each.col_offset))


def _removed(file: Statements, call: ast.Call, node: Argument) -> Splice:
    """With the comma behind it, or for the last one before it."""
    arguments = _in_order(call)
    place = arguments.index(node)
    begin, end = file.text.span(node)
    if place + 1 < len(arguments):
        end, _ = file.text.span(arguments[place + 1])
    elif place:
        _, begin = file.text.span(arguments[place - 1])
    if "#" in file.text.text[begin:end]:
        raise Unspliceable
    return Splice(begin, end, "")


def _added(file: Statements, call: ast.Call, arguments: Sequence[str]) -> Iterator[Splice]:
    """Behind the last one; on lines of their own where the others are."""
    there = _in_order(call)
    if there and (indentation := _own_lines(file, there)) is not None:
        lines = f",{file.newline}{indentation}".join(arguments)
        _, end = file.text.span(there[-1])
        _, behind_call = file.text.span(call)
        behind = file.text.begin_of((there[-1].end_lineno or 0) + 1) - len(file.newline)
        if rest := _BEHIND_LAST.fullmatch(file.text.text[end:behind]):
            if not rest[1]:
                yield Splice(end, end, ",")
            yield Splice(behind, behind, f"{file.newline}{indentation}{lines}{rest[1]}")
            return
        if file.text.text[end:behind_call] == ")":
            yield Splice(end, end, f",{file.newline}{indentation}{lines}")
            return
    yield from splices_of(AddArgument(call, ", ".join(arguments)), file.text.text)


def _own_lines(file: Statements, arguments: Sequence[Argument]) -> str | None:
    """The indentation of arguments that are on lines of their own, the first perhaps behind the parenthesis; None of
    others."""
    before = [file.text.line(each.lineno).encode()[: each.col_offset].decode() for each in arguments]
    return None if any(each.strip() for each in before[1:] or before) else before[-1]
