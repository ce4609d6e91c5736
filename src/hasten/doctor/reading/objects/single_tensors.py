"""Which expressions of a file are surely one tensor: not a list or tuple of them, not an array, and not a number."""

from __future__ import annotations

import ast

from hasten.doctor.reading.names.name_resolution import Names, only_return
from hasten.doctor.reading.names.scopes import Binding, Kind

_DEEPEST = 14
_SEVERAL = frozenset(
    {"split", "chunk", "unbind", "tensor_split", "meshgrid", "broadcast_tensors", "topk", "sort", "max", "min",
     "median", "mode", "unique", "unique_consecutive", "svd", "qr", "eigh", "grad", "numel", "load", "where",
     "nonzero", "device", "manual_seed", "finfo", "iinfo", "save", "compile", "autocast", "inference_mode", "cummax",
     "cummin", "kthvalue", "aminmax", "std_mean", "var_mean", "histogram", "lu", "slogdet", "triangular_solve",
     "typename", "promote_types", "result_type", "multi_head_attention_forward", "vmap", "initial_seed", "seed"}
)  # fmt: skip
"""Functions that return several tensors, or none."""
_ASK_OR_SET = ("is_", "get_", "set_", "has_", "can_", "no_", "enable_", "handle_")
_REDUCE = frozenset({"max", "min", "median", "mode"})  # to one tensor, where no dimension is given
_ONLY_OF_TENSORS = frozenset(
    {"detach", "sign", "sigmoid", "softmax", "log_softmax", "unsqueeze", "contiguous", "permute", "masked_fill",
     "softplus", "clamp", "relu", "index_select", "scatter", "gather", "new_zeros", "new_ones", "requires_grad_",
     "type_as", "log", "exp", "sqrt", "pow", "expand", "expand_as", "view_as", "norm", "bmm", "mm"}
)  # fmt: skip
_SHOW = _ONLY_OF_TENSORS | {"size", "dim"}
_OF_A_TENSOR = frozenset(
    {"cpu", "cuda", "to", "float", "half", "long", "bool", "double", "int", "flatten", "view", "reshape", "squeeze",
     "transpose", "t", "abs", "sum", "mean", "std", "var", "prod", "clone", "repeat", "round", "type", "argmax",
     "argmin", "flip", "roll", "matmul", "mul", "add", "sub", "div", "eq", "ne", "gt", "lt", "ge", "le", "cumsum",
     "logsumexp", "any", "all", "sin", "cos", "tanh", "neg", "square", "repeat_interleave", "take", "diagonal", "triu",
     "tril", "floor", "ceil", "logical_and", "logical_not", "amax", "amin", "non_blocking", "pin_memory"}
)  # fmt: skip
_PLAIN_LAYERS = ("Linear", "Conv", "BatchNorm", "LayerNorm", "GroupNorm", "Dropout", "Pool", "Embedding", "ReLU",
                 "ELU", "Sigmoid", "Tanh", "Softmax", "Upsample", "Flatten", "Sequential", "Loss", "SiLU")  # fmt: skip

_ASK = frozenset({"builtins.isinstance", "builtins.type", "torch.is_tensor"})


class Single:
    def __init__(self, names: Names) -> None:
        self._names = names

    def is_tensor(self, node: ast.AST | None, depth: int = 0) -> bool:
        if depth > _DEEPEST:
            return False
        match node:
            case ast.Name():
                return self._is_named_tensor(node, self._names.bindings(node), depth)
            case ast.Attribute(ast.Name("self")):
                sources = [self._names.source(each) for each in self._names.bindings_of(node)]
                return bool(sources) and all(self.is_tensor(each, depth + 1) for each in sources)
            case ast.Subscript(base, ast.Slice() | ast.Tuple()):
                return self.is_tensor(base, depth + 1)
            case ast.BinOp(left, _, right):
                return self.is_tensor(left, depth + 1) or self.is_tensor(right, depth + 1)
            case ast.UnaryOp(ast.USub() | ast.Invert(), operand):
                return self.is_tensor(operand, depth + 1)
            case ast.Call():
                return self._is_made(node, depth)
            case _:
                return False

    def _is_named_tensor(self, name: ast.Name, bindings: list[Binding], depth: int) -> bool:
        if not bindings or self._is_asked_for(name):
            return False
        if self._is_used_as_tensor(name, bindings):
            return True
        if len(bindings) == 1 and bindings[0].kind is Kind.PARAMETER:
            given = self._names.all_given_to(bindings[0].node)
            return all(self.is_tensor(each, depth + 1) for each in given) if given else self._is_stacked(name)
        return all(self.is_tensor(self._names.source(each), depth + 1) for each in bindings)

    def _is_asked_for(self, name: ast.Name) -> bool:
        """`isinstance(x, torch.Tensor)`: it may be something else, too."""
        scope = self._names.scopes.of(name)
        same = [each for each in self._names.scopes.all(ast.Name) if each.id == name.id]
        calls = [self._names.parents.get(each) for each in same if self._names.scopes.of(each) is scope]
        return any(isinstance(each, ast.Call) and self._names.qualified(each.func) in _ASK for each in calls)

    def _is_stacked(self, name: ast.Name) -> bool:
        """Whether its function replaces it by a tensor of something else: `images = torch.stack(rows)`."""
        sources = [each.source for each in self._names.scopes.of(name).bindings.get(name.id, [])]
        calls = [each for each in sources if isinstance(each, ast.Call)]
        stacks = [each for each in calls if self._names.qualified(each.func) == "torch.stack"]
        return any(not any(getattr(part, "id", "") == name.id for part in ast.walk(each)) for each in stacks)

    def _is_used_as_tensor(self, name: ast.Name, bindings: list[Binding]) -> bool:
        """`x.size(0)`, `x.unsqueeze(1)`: somewhere in the file, where it is bound as here."""
        here = {*map(id, bindings)}
        for each in self._names.scopes.all(ast.Attribute):
            match each, self._names.parents.get(each):
                case ast.Attribute(ast.Name(other) as used, attribute), ast.Call():
                    if other == name.id and attribute in _SHOW and {*map(id, self._names.bindings(used))} == here:
                        return True
        return False

    def _is_made(self, call: ast.Call, depth: int) -> bool:
        name = self._names.qualified(call.func) or ""
        last = name.rpartition(".")[2]
        if name.startswith(("torch.nn.functional.", "torch.special.")) or name == f"torch.{last}":
            reduces = last in _REDUCE and len(call.args) == 1 and not call.keywords
            several = any(each.arg in {"return_inverse", "return_indices", "as_tuple"} for each in call.keywords)
            one = last[:1].islower() and last not in _SEVERAL and not last.startswith(_ASK_OR_SET)
            return reduces or (one and not several)
        if isinstance(call.func, ast.Attribute) and not name:
            method, base = call.func.attr, call.func.value
            if method in _ONLY_OF_TENSORS:
                of_others = (self._names.made_by(base) or "").startswith(("numpy.", "pandas.", "math."))
                return self._names.class_of(base) is None and not of_others
            if method in _OF_A_TENSOR or (method in _REDUCE and not call.args and not call.keywords):
                return self.is_tensor(base, depth + 1)
        made = self._names.made_by(call.func) or ""
        plain_layer = made.startswith("torch.nn.") and any(word in made for word in _PLAIN_LAYERS)
        if plain_layer or made.startswith("torchaudio.transforms."):
            return True
        function = self._names.function(call) or self._names.method_of(self._names.class_of(call.func), "forward")
        return self.is_tensor(only_return(function), depth + 1)
