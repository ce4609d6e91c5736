"""What the names of a file mean: through imports, assignments, attributes of `self`, and parameters of functions that
the file calls from one place.

A name that could mean two things has no meaning here: where a rule cannot be sure, it reports nothing.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from functools import cached_property

from hasten.doctor.reading.names.scopes import COMPREHENSIONS, Binding, Function, Kind, Node, Scope, Scopes, begin

_DEEPEST = 20  # assignments to follow
RETURN_THEMSELVES = frozenset(
    {"to", "cuda", "cpu", "train", "eval", "float", "half", "double", "bfloat16", "share_memory", "requires_grad_"}
)  # fmt: skip
_MOVED = (
    (re.compile(r"^torch\.nn\.modules\.\w+\.(?=[A-Z])"), "torch.nn."),
    (re.compile(r"^torch\.optim\.(?!lr_scheduler)\w+\.(?=[A-Z])"), "torch.optim."),
    (re.compile(r"^torch\.utils\.data\.(dataloader|dataset|distributed|sampler)\.(?=[A-Z])"), "torch.utils.data."),
    (re.compile(r"^torch\.nn\.parallel\.(data_parallel|distributed)\.(?=[A-Z])"), "torch.nn.parallel."),
    (re.compile(r"^torch\.nn\.(?=DataParallel$)"), "torch.nn.parallel."),
    (re.compile(r"^torch\.autograd\.(grad_mode|anomaly_mode)\."), "torch.autograd."),
    (re.compile(r"^torch\.autograd\.(?=(no_grad|inference_mode|set_grad_enabled|enable_grad)$)"), "torch."),
    (re.compile(r"^torch\.nn\.utils\.clip_grad\."), "torch.nn.utils."),
    (re.compile(r"^(torch\.(?:\w+\.)?amp\.)(autocast_mode|grad_scaler)\."), r"\1"),
)
"""The module that defines a class, and the name that users know it by."""
_OF_STARS = {
    "torch.optim": "SGD Adam AdamW Adagrad Adadelta Adamax ASGD LBFGS NAdam RAdam RMSprop Rprop SparseAdam Adafactor",
    "torch.utils.data": ("DataLoader Dataset IterableDataset TensorDataset ConcatDataset Subset random_split Sampler "
                         "RandomSampler SequentialSampler WeightedRandomSampler BatchSampler DistributedSampler"),
    "torch": "Tensor Generator Size FloatTensor LongTensor",
}  # fmt: skip
"""By module, the names that `from module import *` gives besides the layers of torch.nn and the functions."""


class Names:
    def __init__(self, scopes: Scopes) -> None:
        self.scopes = scopes
        self.parents = scopes.parents
        self._qualified: dict[ast.AST, str | None] = {}
        self._uses: dict[Function, list[ast.AST]] = {}
        self._makings: dict[ast.AST, ast.Call | None] = {}

    def qualified(self, node: ast.AST | None) -> str | None:
        """The dotted name that an expression stands for, such as "torch.utils.data.DataLoader"; None where it is not
        known. A function or class of this file has the name ".name"."""
        if not isinstance(node, ast.Attribute | ast.Name):
            return None
        if node not in self._qualified:
            self._qualified[node] = None  # of a name that is defined by itself
            self._qualified[node] = self._find_qualified(node)
        return self._qualified[node]

    def _find_qualified(self, node: ast.Attribute | ast.Name) -> str | None:
        if isinstance(node, ast.Attribute):
            base = self.qualified(node.value)
            return _known_as(f"{base}.{node.attr}") if base is not None else self.qualified(self.value(node))
        bindings = self.bindings(node)
        if not bindings:
            return f"builtins.{node.id}" if hasattr(builtins, node.id) else self._starred(node.id)
        found = {self._meaning(each, node.id) for each in bindings}
        return found.pop() if len(found) == 1 else None

    def _starred(self, name: str) -> str | None:
        """What it means after `from torch.nn import *` and the like; None where another star may have given it."""
        modules = {each.imported.removesuffix(".*") for each in self.scopes.module.bindings.get("*", [])}
        module = next((module for module, names in _OF_STARS.items() if name in names.split()), "")
        if not module and name[:1].isupper():
            module = "torch.nn"
        elif not module:
            module = "torch" if "torch" in modules else "torch.nn.functional"
        others = any(not each.startswith("torch") for each in modules)
        return _known_as(f"{module}.{name}") if module in modules and not others else None

    def _meaning(self, binding: Binding, name: str) -> str | None:
        if binding.kind is Kind.IMPORT:
            return _known_as(binding.imported)
        return f".{name}" if binding.kind is Kind.DEFINITION else self.qualified(self.source(binding))

    def value(self, node: ast.AST | None) -> ast.expr | None:
        """What a name or an attribute of `self` is, where that is one expression; None where not."""
        bindings = self.bindings_of(node)
        return self.source(bindings[0]) if len(bindings) == 1 else None

    def followed(self, node: ast.AST | None) -> ast.AST | None:
        """The expression itself, or what was assigned to it, as far as that can be followed."""
        for _ in range(_DEEPEST):
            value = self.value(node)
            if value is None:
                return node
            node = value
        return node

    def made_by(self, node: ast.AST | None) -> str | None:
        """The qualified name of the call that made it: "torch.optim.Adam" for `Adam(…)`, and for a name that was
        assigned it, or that a function of this file returns."""
        return self.qualified(getattr(self.making(node), "func", None))

    def making(self, node: ast.AST | None) -> ast.Call | None:
        """The call that made it; calls that return the object itself, such as `.to(device)`, are skipped."""
        if node is None:
            return None
        if node not in self._makings:
            self._makings[node] = None  # of an object that is made of itself
            self._makings[node] = self._find_making(node)
        return self._makings[node]

    def _find_making(self, node: ast.AST | None) -> ast.Call | None:
        for _ in range(_DEEPEST):
            node = self.followed(node)
            if not isinstance(node, ast.Call):
                return None
            if isinstance(node.func, ast.Attribute) and node.func.attr in RETURN_THEMSELVES | {"apply"}:
                node = node.func.value
                continue
            returned = only_return(self.function(node))
            if returned is None:
                return node
            node = returned
        return None

    def source(self, binding: Binding) -> ast.expr | None:
        """The one expression that it stands for; None where there is none."""
        if binding.kind is Kind.VALUE:
            return binding.source
        if binding.kind is Kind.PART and binding.number is not None:
            return self._part(binding.source, binding.number)
        return self.given_to(binding.node) if binding.kind is Kind.PARAMETER else None

    def _part(self, source: ast.expr | None, number: int) -> ast.expr | None:
        """An element of a tuple that is written out, or that a function of this file returns."""
        whole = self.followed(source)
        if isinstance(whole, ast.Call):
            whole = self.followed(only_return(self.function(whole)))
        return whole.elts[number] if isinstance(whole, ast.Tuple) and number < len(whole.elts) else None

    def bindings(self, name: ast.Name) -> list[Binding]:
        """Those that may give it its meaning where it stands: in its own scope, the ones that reach it; in an outer
        scope, all, or the last where none is under a condition."""
        scope = first = self.scopes.of(name)
        while scope is not None:
            if name.id in scope.outer:
                scope = scope.outer[name.id]
            visible = scope is first or not isinstance(scope.node, ast.ClassDef)
            if visible and name.id in scope.bindings:
                bindings = scope.bindings[name.id]
                if scope is first:
                    return self._reaching(bindings, name)
                plain = all(self._is_in(each, scope) and not self.branches(each.node) for each in bindings)
                return bindings[-1:] if plain else bindings
            if scope is first and isinstance(scope.node, COMPREHENSIONS):
                first = scope.parent  # it runs where it stands
            scope = scope.parent
        return []

    def bindings_of(self, node: ast.AST | None) -> list[Binding]:
        """Those of a name, or of an attribute of `self` in its class; none of anything else."""
        match node:
            case ast.Name():
                return self.bindings(node)
            case ast.Attribute(ast.Name("self" | "cls"), name):
                return self.attribute(self.enclosing(node, ast.ClassDef), name)
            case _:
                return []

    def attribute(self, owner: ast.ClassDef | None, name: str) -> list[Binding]:
        """What a class assigns to an attribute of its objects."""
        return self.scopes.attributes.get(owner, {}).get(name, []) if owner is not None else []

    def _reaching(self, bindings: list[Binding], name: ast.Name) -> list[Binding]:
        """In one scope: from the last before it, back to one that it surely passed. Where none comes before it, those
        after it, which an earlier turn of a loop reaches."""
        if len(bindings) == 1:
            return bindings
        here, scope, around = begin(name), self.scopes.of(name), self.branches(name)
        reaching: list[Binding] = []
        for each in reversed([each for each in bindings if each.since <= here]):
            reaching.append(each)
            replaces = each.kind is not Kind.AUGMENTED and self._is_in(each, scope)
            if replaces and self.branches(each.node) <= around:
                return reaching
        return reaching or bindings

    def _is_in(self, binding: Binding, scope: Scope) -> bool:
        """Not in another function, which declares the name as `global`."""
        definition = binding.kind is Kind.DEFINITION
        return self.scopes.of(self.parents[binding.node] if definition else binding.node) is scope

    def branches(self, node: ast.AST) -> set[tuple[ast.AST, str]]:
        """The branches of conditions that it lies in, in its own function."""
        found = set[tuple[ast.AST, str]]()
        inside = node
        for each in self.around(node):
            if isinstance(each, ast.FunctionDef | ast.Lambda | ast.ClassDef):
                break
            if isinstance(each, ast.If | ast.IfExp) and inside is not each.test:
                orelse = each.orelse if isinstance(each.orelse, list) else [each.orelse]
                found.add((each, "orelse" if inside in orelse else "body"))
            elif isinstance(each, ast.ExceptHandler | ast.match_case):
                found.add((each, "body"))
            inside = each
        return found

    def function(self, call: ast.Call) -> Function | None:
        """The function of this file, or the method of a class of it, that is called."""
        return self.function_named(call.func)

    def function_named(self, node: ast.AST) -> Function | None:
        if isinstance(node, ast.Name):
            bindings = self.bindings(node)
            found = bindings[0].node if len(bindings) == 1 else None
            return found if isinstance(found, Function) else None
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name | ast.Call):
            return self.method_of(self.class_of(node.value), node.attr)
        return None

    def classes(self, owner: ast.ClassDef | None) -> list[ast.ClassDef]:
        """The class, and those of this file that it derives from."""
        found = list[ast.ClassDef]()
        while owner is not None and owner not in found:
            found.append(owner)
            owner = next(filter(None, map(self.class_named, owner.bases)), None)
        return found

    def method_of(self, owner: ast.ClassDef | None, name: str) -> Function | None:
        """Its own method, or that of a class of this file that it derives from."""
        return next(filter(None, (method(each, name) for each in self.classes(owner))), None)

    def class_of(self, node: ast.AST | None) -> ast.ClassDef | None:
        """The class of this file that an object belongs to; for `self`, the one around it."""
        if isinstance(node, ast.Name) and node.id in {"self", "cls"}:
            return self.enclosing(node, ast.ClassDef)
        making = self.making(node)
        return self.class_named(making.func) if making is not None else None

    def class_named(self, node: ast.AST) -> ast.ClassDef | None:
        bindings = self.bindings(node) if isinstance(node, ast.Name) else []
        found = bindings[0].node if len(bindings) == 1 else None
        return found if isinstance(found, ast.ClassDef) else None

    def given_to(self, parameter: ast.AST) -> ast.expr | None:
        """What the file gives for a parameter of a function that is called from one place and passed to nothing."""
        given = self._given_by_uses(parameter)
        return given[0] if len(given) == 1 else None

    def all_given_to(self, parameter: ast.AST) -> list[ast.expr]:
        """What all calls of its function give; none where one of them hides it, or where the function is passed on."""
        given = self.seen_given_to(parameter)
        return given if len(given) == len(self._given_by_uses(parameter)) else []

    def seen_given_to(self, parameter: ast.AST) -> list[ast.expr]:
        """What those calls of its function give that do not hide it."""
        return [each for each in self._given_by_uses(parameter) if each is not None]

    def _given_by_uses(self, parameter: ast.AST) -> list[ast.expr | None]:
        """What each use of its function gives, or its default; None where it hides it, or passes the function on."""
        function = self.parents.get(self.parents[parameter])
        if not isinstance(function, Function) or not isinstance(parameter, ast.arg):
            return []
        calls = [(use, self.parents.get(use)) for use in self.uses(function)]
        return [
            argument_for(parameter, function, call) if isinstance(call, ast.Call) and call.func is use else None
            for use, call in calls
        ]

    def uses(self, function: Function) -> list[ast.AST]:
        """Expressions that stand for it in this file; for an `__init__`, those that stand for its class."""
        if function not in self._uses:
            self._uses[function] = []  # of a function whose uses are being searched
            self._uses[function] = self._find_uses(function)
        return self._uses[function]

    def _find_uses(self, function: Function) -> list[ast.AST]:
        owner = self.parents[function]
        if function.name == "__init__" and isinstance(owner, ast.ClassDef):
            named = [each for each in self._reads.get(owner.name, []) if self.class_named(each) is owner]
            return [each for each in named if not isinstance(self.parents[each], ast.ClassDef)]
        return [each for each in self._reads.get(function.name, []) if self.function_named(each) is function]

    @cached_property
    def _reads(self) -> dict[str, list[ast.AST]]:
        """Names and attributes that are read, by their last word."""
        found: dict[str, list[ast.AST]] = {}
        for node in (*self.scopes.all(ast.Name), *self.scopes.all(ast.Attribute)):
            if isinstance(node.ctx, ast.Load):
                found.setdefault(node.id if isinstance(node, ast.Name) else node.attr, []).append(node)
        return found

    def calls_of(self, function: Function) -> list[ast.Call]:
        """The calls in this file that run it: its own, and those that get it as a closure."""
        around = [self.parents.get(use) for use in self.uses(function)]
        return [each for each in around if isinstance(each, ast.Call)]

    def enclosing(self, node: ast.AST, *kinds: type[Node]) -> Node | None:
        """The nearest node around it that is one of these kinds."""
        return next((each for each in self.around(node) if isinstance(each, kinds)), None)

    def around(self, node: ast.AST) -> Iterator[ast.AST]:
        """All nodes that it lies in, the nearest first."""
        while node in self.parents:
            node = self.parents[node]
            yield node


def method(owner: ast.ClassDef, name: str) -> Function | None:
    found = [each for each in owner.body if isinstance(each, Function) and each.name == name]
    return found[0] if len(found) == 1 else None


def only_return(function: Function | None) -> ast.expr | None:
    """What a function returns in its one `return`."""
    found = [each.value for each in ast.walk(function) if isinstance(each, ast.Return)] if function is not None else []
    return found[0] if len(found) == 1 else None


def argument_for(parameter: ast.arg, function: Function, call: ast.Call) -> ast.expr | None:
    """Its default where the call gives none; None where stars hide it, or where it is itself starred."""
    for keyword in call.keywords:
        if keyword.arg == parameter.arg:
            return keyword.value
    if any(each.arg is None for each in call.keywords) or any(isinstance(each, ast.Starred) for each in call.args):
        return None
    plain = [*function.args.posonlyargs, *function.args.args]
    bound = int(bool(plain) and plain[0].arg in {"self", "cls"})
    if parameter in plain:
        number = plain.index(parameter)
        if 0 <= number - bound < len(call.args):
            return call.args[number - bound]
        back = len(plain) - number
        return function.args.defaults[-back] if back <= len(function.args.defaults) else None
    if parameter in function.args.kwonlyargs:
        return function.args.kw_defaults[function.args.kwonlyargs.index(parameter)]
    return None


def _known_as(name: str) -> str:
    if name.startswith("torch."):
        for pattern, short in _MOVED:
            name = pattern.sub(short, name)
    return name
