"""Edits move nothing but their own place: comments, line ends, formatting and characters of any width stay."""

from __future__ import annotations

import ast

import pytest

from hasten.doctor.edits import AddArgument, Append, Enclose, Remove, Replace, Unspliceable, spliced, splices_of


def first(text: str, kind: type) -> ast.AST:
    return next(each for each in ast.walk(ast.parse(text)) if isinstance(each, kind))


def edited(text: str, edit) -> str:
    return spliced(text, splices_of(edit, text))


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("f()", "f(n=1)"),
        ("f(a, )", "f(a, n=1, )"),
        ("f((a))", "f((a), n=1)"),
        (
            "f(  # head\n    a,  # one, two)\n    b=2,  # last\n)",
            "f(  # head\n    a,  # one, two)\n    b=2, n=1,  # last\n)",
        ),
        ("f(a\r\n  , b\r\n)", "f(a\r\n  , b, n=1\r\n)"),
        ("f('ä,)', 'ö')", "f('ä,)', 'ö', n=1)"),
        ("f(g)(a)", "f(g)(a, n=1)"),
        ("f(lambda: (1, 2), *d,)", "f(lambda: (1, 2), *d, n=1,)"),
    ],
)
def test_an_argument_is_added_behind_the_last(text, after):
    assert edited(text, AddArgument(first(text, ast.Call), "n=1")) == after


def test_an_argument_beside_a_bare_generator_is_refused():
    text = "f(x for x in y)"
    with pytest.raises(Unspliceable):
        edited(text, AddArgument(first(text, ast.Call), "n=1"))


@pytest.mark.parametrize(
    ("text", "after"),
    [("total += loss  # sum", "total += loss.detach()  # sum"), ("total += a + b", "total += (a + b).detach()"),
     ("total += 'ü'[0]", "total += 'ü'[0].detach()")],
)  # fmt: skip
def test_what_is_appended_binds_to_the_whole_expression(text, after):
    node = first(text, ast.AugAssign)
    assert edited(text, Append(node.value, ".detach()")) == after


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("if x:\n    f()  # gone\n    g()\n", "if x:\n    pass  # gone\n    g()\n"),
        ("if x:\n    f()\n    g()\n", "if x:\n    g()\n"),
        ("if x:\r\n    f()\r\n", "if x:\r\n    pass\r\n"),
        ("a = 1; f()\n", "a = 1; pass\n"),
        ("f()", "pass"),
    ],
)
def test_a_statement_goes_with_its_line_and_no_comment_goes(text, after):
    assert edited(text, Remove(first(text, ast.Expr))) == after


def test_an_expression_and_a_named_argument_are_replaced():
    text = "y = torch.tensor(x, copy=True)  # copy\n"
    call = first(text, ast.Call)
    assert edited(text, Replace(call.func, "f")) == "y = f(x, copy=True)  # copy\n"
    assert edited(text, Replace(call.keywords[0], "y")) == "y = torch.tensor(x, y)  # copy\n"


def test_an_expression_is_enclosed_in_a_call():
    text = "print(f'ü {total / 2}')\n"
    node = next(each for each in ast.walk(ast.parse(text)) if isinstance(each, ast.Name) and each.id == "total")
    assert edited(text, Enclose(node, "float")) == "print(f'ü {float(total) / 2}')\n"
    with pytest.raises(Unspliceable):
        edited("a name that lies elsewhere", Enclose(node, "float"))
