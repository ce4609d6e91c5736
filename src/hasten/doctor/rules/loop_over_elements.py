"""Python loop over the elements of a tensor.

What it finds: `for x in tensor`, and `for i in range(len(tensor))` with `tensor[i]`, in a training step or
`forward()`.

Why it matters: Every element starts kernels of its own. Python launches them one after another, slower than
the device finishes them. One operation on the whole tensor is launched once.

Fix: Compute on the whole tensor, by broadcasting, a mask, indexing or `torch.vmap`.

    # instead of: for i in range(len(x)): total += w[i] * x[i].square().sum()
    total = (w[:, None] * x.square()).sum()

When to ignore: Each element needs the result of the one before, or no operation on the whole tensor does the
work.

Automatic fix: None. The computation has to be rewritten.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import chain

from hasten.doctor.reading.names.name_resolution import method
from hasten.doctor.reading.objects.single_tensors import Single
from hasten.doctor.rule import Code, Found, Severity, SourceRule


def check(code: Code) -> Iterator[Found]:
    single = Single(code.names)
    for loop in dict.fromkeys(_loops(code)):
        over = _gone_over(code, loop)
        if over is not None and single.is_tensor(over) and not _carries(loop):
            yield Found(loop, f"this Python loop launches kernels for every element of {ast.unparse(over)}")


def _loops(code: Code) -> Iterator[ast.For]:
    """Those that run in a step, or in the forward() of a module, with gradients."""
    forwards = [method(owner, "forward") for owner in code.all(ast.ClassDef) if code.tensors.is_module_class(owner)]
    in_forward = [code.training.run(each) for each in forwards if each is not None]
    for each in chain(*(step.ran for step in code.training.steps), *in_forward):
        if isinstance(each.node, ast.For) and not code.training.is_without_gradients(each.around):
            yield each.node


def _gone_over(code: Code, loop: ast.For) -> ast.expr | None:
    """The tensor, if it is one, whose elements the loop takes one by one."""
    match loop.iter:
        case ast.Name() | ast.Call(ast.Attribute()) if not _is_range(code, loop.iter):
            return loop.iter
        case ast.Call(ast.Name("enumerate"), [ast.Name() as over, *_]):
            return over
        case ast.Call(_, [length]) if _is_range(code, loop.iter) and isinstance(loop.target, ast.Name):
            over = _length_of(code, length)
            return over if over is not None and _indexes(loop, over, loop.target.id) else None
        case _:
            return None


def _is_range(code: Code, node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and code.names.qualified(node.func) == "builtins.range"


def _length_of(code: Code, node: ast.expr) -> ast.expr | None:
    """The x of `len(x)`, `x.size(0)` and `x.shape[0]`."""
    match code.names.followed(node):
        case ast.Call(ast.Name("len"), [over]):
            return over
        case ast.Call(ast.Attribute(over, "size"), [ast.Constant(0)]):
            return over
        case ast.Subscript(ast.Attribute(over, "shape"), ast.Constant(0)):
            return over
        case _:
            return None


def _indexes(loop: ast.For, over: ast.expr, number: str) -> bool:
    said = ast.unparse(over)
    return any(
        isinstance(each, ast.Subscript)
        and isinstance(each.ctx, ast.Load)
        and isinstance(each.slice, ast.Name)
        and each.slice.id == number
        and ast.unparse(each.value) == said
        for statement in loop.body
        for each in ast.walk(statement)
    )


def _carries(loop: ast.For) -> bool:
    """Whether a turn reads what an earlier one has assigned, as a recurrent cell does."""
    names = [each for statement in loop.body for each in ast.walk(statement) if isinstance(each, ast.Name)]
    assigned = {each.id for each in names if isinstance(each.ctx, ast.Store)}
    for statement in loop.body:
        if _adds_up(statement):
            continue
        inside = [each for each in ast.walk(statement) if isinstance(each, ast.Name)]
        read = {each.id for each in inside if isinstance(each.ctx, ast.Load)}
        if read & assigned:
            return True
        assigned -= {each.id for each in inside if isinstance(each.ctx, ast.Store)}
    return False


def _adds_up(statement: ast.stmt) -> bool:
    """`total = total + …`: a sum of all elements can be taken at once."""
    match statement:
        case ast.Assign([ast.Name(total)], ast.BinOp(ast.Name(again), ast.Add(), added)) if total == again:
            return not any(isinstance(each, ast.Name) and each.id == total for each in ast.walk(added))
        case _:
            return False


RULE = SourceRule(
    code="H207",
    severity=Severity.COSTLY,
    fix="compute on the whole tensor: broadcasting, a mask, indexing or torch.vmap",
    check=check,
)
