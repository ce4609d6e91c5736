"""Makes edits in a source, by libcst: everything that is not edited keeps its characters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider

from hasten.errors import PlanError
from hasten.facts.scripts.script_places import SourceCall
from hasten.scripts.edits.edit import AddLines, AddToHeader, Edit, SetKeywords, WrapArguments, WrapStatements

_Statement = cst.SimpleStatementLine | cst.BaseCompoundStatement


def edited_source(text: str, edits: Sequence[Edit]) -> str:
    """Raises PlanError where a call is not found or an edit cannot be written."""
    try:
        wrapper = MetadataWrapper(cst.parse_module(text))
    except cst.ParserSyntaxError as error:
        raise PlanError(f"is not Python that libcst reads: {error.message}") from error
    editor = _Editor(edits=edits, lines=text.splitlines())
    edited = wrapper.visit(editor)
    if left := [each for each in edits if not any(each is done for done in editor.done)]:
        raise PlanError(f"has no place for {type(left[0]).__name__}: the call was not found in the source")
    return edited.code


@dataclass
class _Editor(cst.CSTTransformer):
    METADATA_DEPENDENCIES = (PositionProvider,)

    edits: Sequence[Edit]
    lines: Sequence[str]
    done: list[Edit] = field(default_factory=list[Edit])

    def __post_init__(self) -> None:
        super().__init__()

    # ── calls ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:
        for edit in self.edits:
            match edit:
                case SetKeywords(call=call) if self._is(original_node, call):
                    updated_node = _with_keywords(updated_node, edit)
                    self.done.append(edit)
                case WrapArguments(call=call) if self._is(original_node, call):
                    updated_node = _with_methods(updated_node, edit)
                    self.done.append(edit)
                case _:
                    pass
        return updated_node

    def _is(self, node: cst.Call, call: SourceCall) -> bool:
        where = self._span(node)
        begin, end = (where.start.line, where.start.column), (where.end.line, where.end.column)
        return begin == self._place(call.line, call.column) and end == self._place(call.end_line, call.end_column)

    def _place(self, line: int, column: int) -> tuple[int, int]:
        """In characters, where Python counts bytes of UTF-8."""
        text = self.lines[line - 1] if 0 < line <= len(self.lines) else ""
        return line, len(text.encode()[:column].decode(errors="replace"))

    def _span(self, node: cst.CSTNode) -> CodeRange:
        found = self.get_metadata(PositionProvider, node)
        assert isinstance(found, CodeRange)
        return found

    # ── statements ──────────────────────────────────────────────────────────────────────────────────────────────────

    def leave_IndentedBlock(self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock) -> cst.BaseSuite:
        body = self._edited_body(original_node.body, updated_node.body)
        return updated_node if body is None else updated_node.with_changes(body=body)

    def leave_Module(self, original_node: cst.Module, updated_node: cst.Module) -> cst.Module:
        body = self._edited_body(original_node.body, updated_node.body)
        body = list(updated_node.body) if body is None else body
        for edit in self.edits:
            if isinstance(edit, AddToHeader):
                body = _with_header(body, edit.lines)
                self.done.append(edit)
        return updated_node.with_changes(body=body)

    def _edited_body(
        self, original: Sequence[cst.BaseStatement], updated: Sequence[cst.BaseStatement]
    ) -> list[cst.BaseStatement] | None:
        """None where nothing changes. Blocks are left from the inside out, so the first one that has the call's
        statement is the innermost."""
        before, after = dict[int, list[cst.BaseStatement]](), dict[int, list[cst.BaseStatement]]()
        wrapped: tuple[int, int, str] | None = None
        for edit in self.edits:
            if any(edit is each for each in self.done):
                continue
            match edit:
                case AddLines(call=call) if (at := self._index(original, call)) is not None:
                    into = before if edit.where == "before" else after
                    into.setdefault(at, []).extend(map(cst.parse_statement, edit.lines))
                    self.done.append(edit)
                case WrapStatements(first=first, last=last, context=context):
                    begin, end = self._index(original, first), self._index(original, last)
                    if begin is not None and end is not None and begin < end:
                        wrapped = begin, end, context
                        self.done.append(edit)
                case _:
                    pass
        if not before and not after and wrapped is None:
            return None
        body = list[cst.BaseStatement]()
        for index, statement in enumerate(updated):
            body += [*before.get(index, []), statement, *after.get(index, [])]
        if wrapped is None:
            return body
        if before or after:
            raise PlanError("needs lines added among statements that are wrapped")
        begin, end, context = wrapped
        return [*body[:begin], _with_block(body[begin:end], context), *body[end:]]

    def _index(self, body: Sequence[cst.BaseStatement], call: SourceCall) -> int | None:
        """Of the statement that a call is in."""
        place = self._place(call.line, call.column)
        for index, statement in enumerate(body):
            where = self._span(statement)
            if (where.start.line, where.start.column) <= place < (where.end.line, where.end.column):
                return index
        return None


def _with_keywords(call: cst.Call, edit: SetKeywords) -> cst.Call:
    kept = [each for each in call.args if each.keyword is None or each.keyword.value not in edit.without]
    given = {each.keyword.value for each in kept if each.keyword is not None}
    args = [
        each.with_changes(value=cst.parse_expression(edit.keywords[each.keyword.value]))
        if each.keyword is not None and each.keyword.value in edit.keywords
        else each
        for each in kept
    ]
    between = args[0].comma if len(args) > 1 else cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    for name, source in edit.keywords.items():
        if name in given:
            continue
        last = args[-1].comma if args else cst.MaybeSentinel.DEFAULT
        if args:
            args[-1] = args[-1].with_changes(comma=between)
        args.append(
            cst.Arg(
                keyword=cst.Name(name),
                value=cst.parse_expression(source),
                equal=cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace("")),
                comma=last,
            )
        )
    if len(kept) < len(call.args) and args and not isinstance(call.args[-1].comma, cst.Comma):
        args[-1] = args[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
    return call.with_changes(args=args)


def _with_methods(call: cst.Call, edit: WrapArguments) -> cst.Call:
    args = list(call.args)
    for position in edit.positions:
        if position >= len(args) or args[position].keyword is not None or args[position].star:
            raise PlanError(f"argument {position + 1} of the call is not written at its place")
        value = args[position].value
        if not isinstance(value, cst.Name | cst.Attribute | cst.Call | cst.Subscript):
            value = value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
        owner = cst.Module([]).code_for_node(value)
        args[position] = args[position].with_changes(value=cst.parse_expression(f"{owner}.{edit.method}"))
    return call.with_changes(args=args)


def _with_block(statements: Sequence[cst.BaseStatement], context: str) -> cst.With:
    """Empty lines before the first statement stay outside; a comment goes in with its statement."""
    first = statements[0]
    lines: list[cst.EmptyLine] = list(getattr(first, "leading_lines", []))
    blank = next((number for number, line in enumerate(lines) if line.comment is not None), len(lines))
    inside = [first.with_changes(leading_lines=lines[blank:]), *statements[1:]] if lines else list(statements)
    return cst.With(
        items=[cst.WithItem(cst.parse_expression(context))],
        body=cst.IndentedBlock(body=inside),
        leading_lines=lines[:blank],
    )


def _with_header(body: Sequence[cst.BaseStatement], lines: Sequence[str]) -> list[cst.BaseStatement]:
    """Behind the imports with which the file begins."""
    end = 0
    for index, statement in enumerate(body):
        if _is_import(statement):
            end = index + 1
        elif not _is_docstring(statement, index):
            break
    has_torch = any("torch" in _imported(each) for each in body[:end])
    added = [cst.parse_statement(line) for line in ([] if has_torch else ["import torch"])]
    settings = [cst.parse_statement(line) for line in lines]
    settings[0] = settings[0].with_changes(leading_lines=[cst.EmptyLine(indent=False)])
    return [*body[:end], *added, *settings, *body[end:]]


def _is_import(statement: cst.BaseStatement) -> bool:
    return isinstance(statement, cst.SimpleStatementLine) and all(
        isinstance(each, cst.Import | cst.ImportFrom) for each in statement.body
    )


def _is_docstring(statement: cst.BaseStatement, index: int) -> bool:
    return (
        index == 0
        and isinstance(statement, cst.SimpleStatementLine)
        and isinstance(statement.body[0], cst.Expr)
        and isinstance(statement.body[0].value, cst.SimpleString | cst.ConcatenatedString)
    )


def _imported(statement: cst.BaseStatement) -> set[str]:
    """The names that `import a, b.c` binds; of `import torch.nn as nn` none."""
    found = set[str]()
    if isinstance(statement, cst.SimpleStatementLine):
        for each in statement.body:
            if isinstance(each, cst.Import):
                for alias in each.names:
                    if alias.asname is None:
                        found.add(cst.Module([]).code_for_node(alias.name).partition(".")[0])
    return found
