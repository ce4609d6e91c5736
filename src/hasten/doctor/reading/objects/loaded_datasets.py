"""What the loaders of a file load: what kind of data set, and what is done for each of its samples."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cached_property

from hasten.doctor.reading.names.argument_values import ABSENT, Values
from hasten.doctor.reading.names.name_resolution import Names
from hasten.doctor.reading.names.scopes import Function
from hasten.doctor.reading.names.value_origins import Origin, Origins, contents
from hasten.doctor.reading.objects.optimizer_roles import name_of

_PARTS = frozenset({"torch.utils.data.Subset", "torch.utils.data.random_split", "torch.utils.data.ConcatDataset",
                    "builtins.list"})  # fmt: skip
_LIBRARIES = ("torchvision.datasets.", "torchaudio.datasets.")
_HUB = frozenset({"datasets.load_dataset", "datasets.load_from_disk", "datasets.load.load_dataset"})
_HUB_METHODS = frozenset({"map", "filter", "select", "with_format", "with_transform", "remove_columns", "rename_column",
                          "rename_columns", "train_test_split", "cast_column", "cast", "sort", "add_column",
                          "shard", "select_columns"})  # fmt: skip
_ITERABLE = ("IterableDataset", "IterDataPipe", "ChainDataset")
_READS_A_FILE = frozenset(
    {"builtins.open", "PIL.Image.open", "cv2.imread", "torchaudio.load", "torchvision.io.read_image", "soundfile.read",
     "torchvision.io.decode_image", "torchvision.io.decode_jpeg", "torchvision.io.read_file", "librosa.load",
     "librosa.core.load", "numpy.load", "numpy.loadtxt", "numpy.fromfile", "torch.load", "imageio.imread",
     "imageio.v2.imread", "imageio.v3.imread", "skimage.io.imread", "h5py.File", "scipy.io.wavfile.read",
     "pandas.read_csv", "pandas.read_parquet", "nibabel.load", "rasterio.open", "tifffile.imread", "pickle.load",
     "json.load", "torchvision.io.read_video", "torchvision.datasets.folder.default_loader", "gzip.open",
     "numpy.memmap", "cv2.imdecode", "cv2.VideoCapture", "pydicom.dcmread", "SimpleITK.ReadImage",
     "matplotlib.image.imread", "matplotlib.pyplot.imread"}
)  # fmt: skip
_TRANSFORMS = ("transform", "augment", "preprocess")
_TRANSFORM_LIBRARIES = ("torchvision.transforms.", "torchaudio.transforms.", "albumentations.", "monai.transforms.")
_RANDOM = ("random.", "numpy.random.", "torch.rand", "secrets.")
_TENSORS = ("torch.", "numpy.")
_MAKE = frozenset({"randn", "rand", "zeros", "ones", "arange", "tensor", "stack"})


@dataclass(frozen=True, eq=False)
class Source:
    """One data set that a loader may get. making: the expression that makes it."""

    making: ast.expr
    datasets: Datasets
    is_shuffled: bool = False  # once, when it was made

    @cached_property
    def name(self) -> str:
        """The full name of what makes it; "" where that is not known."""
        return self.datasets.names.qualified(getattr(self.making, "func", None)) or ""

    @cached_property
    def owner(self) -> ast.ClassDef | None:
        """Its class, where that is in this file."""
        return self.datasets.names.class_named(self.making.func) if isinstance(self.making, ast.Call) else None

    @cached_property
    def getitem(self) -> Function | None:
        return self.datasets.names.method_of(self.owner, "__getitem__")

    @property
    def is_map_style(self) -> bool:
        """For sure: with a length, and samples by their index."""
        if self.owner is not None:
            return self.getitem is not None and not self.datasets.is_iterable(self.owner)
        made = self.name == "torch.utils.data.TensorDataset" or self._is_of_hub
        return made or (self.name.startswith(_LIBRARIES) and self.name[-1] != ".") or self._is_array

    @property
    def has_no_order(self) -> bool:
        """Whether its samples come as they fall: drawn, shuffled, or noise from the start."""
        return self.is_shuffled or self._is_noise or self._draws_by_itself

    @property
    def _is_noise(self) -> bool:
        """What is first in a TensorDataset, or what a class takes its samples from."""
        held: list[ast.expr] = [self.making]
        if self.name == "torch.utils.data.TensorDataset" and isinstance(self.making, ast.Call):
            held = self.making.args[:1]
        elif self.getitem is not None:
            taken = [each.value for each in ast.walk(self.getitem) if isinstance(each, ast.Subscript)]
            held = [each for each in taken if isinstance(each, ast.Attribute)]
        return bool(held) and all(self.datasets.is_random(each) for each in held)

    @property
    def _draws_by_itself(self) -> bool:
        """Whether its samples do not follow the index that they are asked by."""
        if self.getitem is None:
            return False
        parameters = [each.arg for each in self.getitem.args.args[1:2]]
        used = {each.id for each in ast.walk(self.getitem) if isinstance(each, ast.Name)}
        return not parameters or not used & {*parameters} or self._draws_an_index

    @property
    def works_for_each(self) -> bool:
        """Whether it visibly opens, decodes or transforms something for each sample."""
        if self.owner is None:
            return self.name.startswith(_LIBRARIES) or self._is_of_hub
        return self.getitem is not None and self.datasets.opens_or_transforms(self.getitem)

    @property
    def _is_of_hub(self) -> bool:
        return self.name in _HUB and self.datasets.is_no_stream(self.making)

    @property
    def _is_array(self) -> bool:
        """A tensor or an array that is made here."""
        return self.name.startswith(_TENSORS) and self.name.rpartition(".")[2] in _MAKE

    @cached_property
    def _draws_an_index(self) -> bool:
        """`self.rows[random.randrange(…)]`"""
        assert self.getitem is not None
        names = self.datasets.names
        calls = [each for each in ast.walk(self.getitem) if isinstance(each, ast.Call)]
        drawn = [each for each in calls if (names.qualified(each.func) or "").startswith(_RANDOM)]
        return any(isinstance(around, ast.Subscript) for each in drawn for around in names.around(each))


class Datasets:
    def __init__(self, names: Names, values: Values, origins: Origins) -> None:
        self.names, self._values, self._origins = names, values, origins

    def of(self, node: ast.expr) -> list[Source]:
        """All that it may be, without what only takes a part of one."""
        found = list[Source]()
        waiting, seen = [(node, False)], set[ast.expr]()
        while waiting:
            here, shuffled = waiting.pop()
            for origin in self._origins.of(here):
                if origin.node in seen:
                    continue
                seen.add(origin.node)
                inner = self._inside(origin)
                shuffled = shuffled or _shuffles(origin.node)
                waiting += [(each, shuffled) for each in inner]
                if not inner:
                    known = not origin.entries or self.names.qualified(getattr(origin.node, "func", None)) in _HUB
                    making = origin.node if known else ast.Constant(None)
                    found.append(Source(making, self, shuffled))
        return found

    def _inside(self, origin: Origin) -> list[ast.expr]:
        """What it takes a part of."""
        node = origin.node
        match node:
            case ast.Call(ast.Attribute(base, name)) if name in _HUB_METHODS | {"shuffle"} and not self._is_torch(node):
                return [base]
            case ast.Call(_, [of, *_]) if self.names.qualified(node.func) in _PARTS:
                return of.elts if isinstance(of, ast.List | ast.Tuple) else [of]
            case ast.Attribute(base, "dataset"):
                return self._of_loader(base)
            case _:
                return []

    def _of_loader(self, base: ast.expr) -> list[ast.expr]:
        """`loader.dataset`: what the loader was given, or the Subset."""
        given = [self._values.argument(call, "dataset", 0) for call in self._origins.calls(base)]
        return [each for each in given if isinstance(each, ast.expr)]

    def _is_torch(self, call: ast.Call) -> bool:
        return (self.names.qualified(call.func) or "").startswith("torch.")

    def is_no_stream(self, making: ast.expr) -> bool:
        if not isinstance(making, ast.Call):
            return False
        return self._values.constant_argument(making, "streaming") in {ABSENT, False}

    def is_random(self, node: ast.expr) -> bool:
        """Whether it surely is random numbers."""
        made = [self.names.qualified(getattr(each.node, "func", None)) or "" for each in self._origins.of(node)]
        return bool(made) and all(each.startswith(_RANDOM) for each in made)

    def is_iterable(self, owner: ast.ClassDef) -> bool:
        bases = [base for each in self.names.classes(owner) for base in each.bases]
        return any(ast.unparse(base).endswith(_ITERABLE) for base in bases)

    def opens_or_transforms(self, function: Function) -> bool:
        return any(isinstance(each, ast.Call) and self._works(each) for each in contents(function, self.names))

    def _works(self, call: ast.Call) -> bool:
        name = self.names.qualified(call.func) or ""
        if name in _READS_A_FILE or name.startswith(_TRANSFORM_LIBRARIES):
            return True
        called = name_of(call.func)
        origins = self._origins.of(call.func)
        made = [self.names.qualified(getattr(each.node, "func", None)) or "" for each in origins]
        if any(each.startswith(_TRANSFORM_LIBRARIES) for each in made):
            return True
        # Where the file shows that none is given, `self.transform` does nothing.
        return bool(origins) and any(word in called.lower() for word in _TRANSFORMS)


def _shuffles(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "shuffle"
