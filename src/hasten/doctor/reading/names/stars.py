"""What a name means that only `from torch.nn import *` and the like can have given."""

from __future__ import annotations

from collections.abc import Collection

_OPTIMIZERS = frozenset(
    {"SGD", "Adam", "AdamW", "Adagrad", "Adadelta", "Adamax", "ASGD", "LBFGS", "NAdam", "RAdam", "RMSprop", "Rprop",
     "SparseAdam", "Adafactor", "Optimizer"}
)  # fmt: skip
_DATA = frozenset(
    {"DataLoader", "Dataset", "IterableDataset", "TensorDataset", "ConcatDataset", "Subset", "random_split", "Sampler",
     "RandomSampler", "SequentialSampler", "WeightedRandomSampler", "BatchSampler", "DistributedSampler"}
)  # fmt: skip
_CLASSES_OF_TORCH = frozenset({"Tensor", "Generator", "Size", "FloatTensor", "LongTensor"})


def starred(name: str, modules: Collection[str]) -> str | None:
    """modules: that the file imports so. None where it is not known which of them has the name."""
    if name in _OPTIMIZERS:
        module = "torch.optim"
    elif name in _DATA:
        module = "torch.utils.data"
    elif name[:1].isupper() and name not in _CLASSES_OF_TORCH:
        module = "torch.nn"
    else:
        module = "torch.nn.functional" if "torch" not in modules else "torch"
    others = [each for each in modules if not each.startswith("torch")]
    return f"{module}.{name}" if module in modules and not others else None
