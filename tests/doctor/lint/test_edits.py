"""Edits move nothing but their own place: comments, line ends, formatting and characters of any width stay."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasten.doctor.edits import (
    AddArgument,
    Append,
    Remove,
    RemoveArgument,
    Replace,
    Unspliceable,
    is_python,
    spliced,
    splices_of,
)


def first(text: str, kind: type) -> ast.AST:
    return next(each for each in ast.walk(ast.parse(text)) if isinstance(each, kind))


def edited(text: str, edit) -> str:
    return spliced(text, splices_of(edit, text))


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("f()", "f(n=1)"),
        ("f(a)", "f(a, n=1)"),
        ("f(a, )", "f(a, n=1, )"),
        ("f((a))", "f((a), n=1)"),
        ("f(a, b=(1))  # why", "f(a, b=(1), n=1)  # why"),
        (
            "f(  # head\n    a,  # one, two)\n    b=2,  # last\n)",
            "f(  # head\n    a,  # one, two)\n    b=2, n=1,  # last\n)",
        ),
        ("f(a\r\n  , b\r\n)", "f(a\r\n  , b, n=1\r\n)"),
        ("f('ä,)', 'ö')", "f('ä,)', 'ö', n=1)"),
        ("f(*a, **b)", "f(*a, **b, n=1)"),
        ("f(g)(a)", "f(g)(a, n=1)"),
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
    [
        ("f(n=1)", "f()"),
        ("f(a, n=1)", "f(a)"),
        ("f(a, n=1, b=2)", "f(a, b=2)"),
        ("f(n=1, b=2)", "f(b=2)"),
        ("f(n=1,)", "f()"),
        ("f(\n    a,  # a, n\n    n=(1),  # the last\n)", "f(\n    a  # a, n\n,  # the last\n)"),
    ],
)
def test_an_argument_is_removed_with_one_comma(text, after):
    out = edited(text, RemoveArgument(first(text, ast.Call), "n"))
    assert ast.dump(ast.parse(out)) == ast.dump(ast.parse(after))
    assert out.count("#") == text.count("#")


@pytest.mark.parametrize(
    ("text", "after"),
    [("total += loss  # sum", "total += loss.detach()  # sum"), ("total += a + b", "total += (a + b).detach()"),
     ("total += -a", "total += (-a).detach()"), ("total += 'ü'[0]", "total += 'ü'[0].detach()")],
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


NAMES = st.sampled_from(["a", "bb", "ä", "(c)", "'x, y'", "f(1, 2)", "[1, 2]", "lambda: (1, 2)", "*d"])


@given(given_=st.lists(NAMES, max_size=4), comma=st.booleans(), breaks=st.booleans())
def test_a_call_of_any_shape_has_one_more_argument_and_is_the_same_again_without_it(given_, comma, breaks):
    inside = (",\n  " if breaks else ", ").join(given_) + ("," if comma and given_ else "")
    text = f"call({inside})"
    call = first(text, ast.Call)
    longer = edited(text, AddArgument(call, "n=1"))
    added = first(longer, ast.Call)
    assert [ast.dump(each) for each in added.args] == [ast.dump(each) for each in call.args]
    assert [each.arg for each in added.keywords] == ["n"]
    back = edited(longer, RemoveArgument(added, "n"))
    assert ast.dump(ast.parse(back)) == ast.dump(ast.parse(text))
    assert is_python(back)


def test_an_expression_is_replaced():
    text = "y = torch.tensor(x)  # copy\n"
    assert edited(text, Replace(first(text, ast.Call).func, "torch.as_tensor")) == "y = torch.as_tensor(x)  # copy\n"
