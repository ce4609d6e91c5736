"""Evaluate without recording the autograd graph.

What it does: a function that only evaluates gets the decorator `@torch.no_grad()`. An evaluation loop in a function
that also trains is moved into `with torch.no_grad():`, and so is a statement with a comprehension that evaluates.

Why it is faster: no graph is recorded, and the activations of a batch are freed as soon as they are used.

When it loses: never.

What it changes: nothing of the training ("bit-exact").

Limits: the loop reads a data loader, calls the model, and nothing in it or behind it calls `backward()`.

Example:

    @torch.no_grad()
    def evaluate(model, loader):
        ...
"""

from __future__ import annotations

import ast
import re

from hasten.doctor.reading.source_code import Code
from hasten.errors import PlanError
from hasten.facts.choice import Preserves
from hasten.facts.scripts.script_places import ScriptPlaces, SourceCall
from hasten.facts.techniques.stage import Stage
from hasten.facts.techniques.symptom import Symptom
from hasten.scripts.edits.edit import AddImport, Decorate, Edit, WrapLoop
from hasten.scripts.edits.source_places import Function, Loop, loop_at, place_of, read_source
from hasten.scripts.techniques.script_technique import ScriptTechnique, Sources

_TRAINS = re.compile(r"backward|optim|zero_grad|step|grad|fit|epoch|train(?!ing$)|learn", re.I)
_SIMPLE = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr, ast.Return)
CONTEXT = "torch.no_grad()"


def evaluations(code: Code, file: str) -> tuple[SourceCall, ...]:
    """Loops and comprehensions that call the model under gradients that nothing uses."""
    loops = dict.fromkeys(each.loop for each in code.evaluations.all if each.with_gradients)
    return tuple(place_of(each, file) for each in loops if isinstance(each, Loop) and _is_movable(code, each))


def _is_movable(code: Code, loop: Loop) -> bool:
    """Of a comprehension whether its whole statement can be moved: a line, and no block that could train."""
    return isinstance(loop, ast.For) or isinstance(code.names.enclosing(loop, ast.stmt), _SIMPLE)


def edits(places: ScriptPlaces, sources: Sources) -> list[Edit]:
    if not places.evaluations:
        raise PlanError("the script has no evaluation loop that records gradients")
    found, decorated = list[Edit](), set[ast.AST]()
    trees = {file: read_source(sources(file)) for file in dict.fromkeys(each.file for each in places.evaluations)}
    for place in places.evaluations:
        function = _function_around(trees[place.file], place)
        if function is None or _trains(function):
            found.append(WrapLoop(call=place, context=CONTEXT))
        elif function not in decorated:
            decorated.add(function)
            found.append(Decorate(call=place, decorator=f"@{CONTEXT}"))
    return [*(AddImport(file=file, module="torch") for file in trees), *found]


def _function_around(tree: ast.Module, place: SourceCall) -> ast.AST | None:
    """The innermost one."""
    loop = loop_at(tree, place)
    around = [each for each in ast.walk(tree) if isinstance(each, Function) and loop in ast.walk(each)]
    return around[-1] if around else None


def _trains(function: ast.AST) -> bool:
    """Whether anything that it calls could, by its name; model.train() only sets the mode."""
    for call in (each for each in ast.walk(function) if isinstance(each, ast.Call)):
        match call.func:
            case ast.Attribute(_, "train"):
                continue
            case ast.Attribute(_, name) | ast.Name(name) if _TRAINS.search(name):
                return True
            case _:
                pass
    return False


TECHNIQUE = ScriptTechnique(
    name="evaluation_without_gradients",
    stage=Stage.EVALUATION,
    treats=Symptom.SLOW_EVALUATION,
    preserves=Preserves.BITS,
    costs=(),
    source="https://docs.pytorch.org/docs/stable/generated/torch.no_grad.html",
    edits=edits,
)
