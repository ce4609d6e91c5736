"""What the loaders of a file load: what kind of data set, and what is done for each of its samples."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cached_property

from hasten.doctor.reading.names.argument_values import ABSENT, Values
from hasten.doctor.reading.names.name_resolution import Names
from hasten.doctor.reading.names.scopes import Function
from hasten.doctor.reading.names.value_origins import Origins, contents
from hasten.doctor.reading.objects.optimizer_roles import name_of

_PARTS = frozenset({"torch.utils.data.Subset", "torch.utils.data.random_split", "torch.utils.data.ConcatDataset",
                    "builtins.list"})  # fmt: skip
_LIBRARIES = ("torchvision.datasets.", "torchaudio.datasets.")
_HUB = frozenset({"datasets.load_dataset", "datasets.load_from_disk", "datasets.load.load_dataset"})
_HUB_METHODS = frozenset({"map", "filter", "select", "with_format", "with_transform", "remove_columns", "rename_column",
                          "rename_columns", "train_test_split", "cast_column", "cast", "sort", "add_column",
                          "shard", "select_columns", "shuffle"})  # fmt: skip
_ROWS = "torch.utils.data.TensorDataset"
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
_RESAMPLES = frozenset(
    {"torch.nn.functional.interpolate", "torch.nn.functional.grid_sample", "cv2.resize", "cv2.warpAffine",
     "cv2.warpPerspective", "cv2.remap", "scipy.ndimage.zoom", "scipy.ndimage.rotate", "skimage.transform.resize",
     "skimage.transform.rescale", "skimage.transform.rotate", "torchaudio.functional.resample", "librosa.resample"}
)  # fmt: skip
_TRANSFORMS = ("transform", "augment", "preprocess")
_TRANSFORM_LIBRARIES = ("torchvision.transforms.", "torchaudio.transforms.", "albumentations.", "monai.transforms.")
_RANDOM = ("random.", "numpy.random.", "torch.rand", "secrets.")
_TENSORS = ("torch.", "numpy.")
_MAKE = frozenset({"randn", "rand", "zeros", "ones", "arange", "tensor", "stack"})


@dataclass(frozen=True, eq=False)
class Source:
    """One data set that a loader may get. making: the expression that makes it. is_shuffled: once, when it was made."""

    making: ast.expr
    datasets: Datasets
    is_shuffled: bool

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
        is_array = self.name.startswith(_TENSORS) and self.name.rpartition(".")[2] in _MAKE
        made = is_array or self.name == _ROWS or self.datasets.is_of_hub(self)
        return made or (self.name.startswith(_LIBRARIES) and self.name[-1] != ".")

    @property
    def has_no_order(self) -> bool:
        """Whether its samples have no order: drawn, shuffled, or noise from the start."""
        return self.is_shuffled or self._is_noise or (self.getitem is not None and self._draws(self.getitem))

    @property
    def _is_noise(self) -> bool:
        """What is first in a TensorDataset, or what a class takes its samples from."""
        held: list[ast.expr] = [self.making]
        if self.name == _ROWS and isinstance(self.making, ast.Call):
            held = self.making.args[:1]
        elif self.getitem is not None:
            taken = [each.value for each in ast.walk(self.getitem) if isinstance(each, ast.Subscript)]
            held = [each for each in taken if isinstance(each, ast.Attribute)]
        makers = [self.datasets.origins.makers(each) for each in held]
        return bool(makers) and all(each and all(name.startswith(_RANDOM) for name in each) for each in makers)

    def _draws(self, getitem: Function) -> bool:
        """Whether samples do not follow their index: `self.rows[random.randrange(…)]`."""
        names = self.datasets.names
        used = {each.id for each in ast.walk(getitem) if isinstance(each, ast.Name)}
        calls = [each for each in ast.walk(getitem) if isinstance(each, ast.Call)]
        drawn = [each for each in calls if (names.qualified(each.func) or "").startswith(_RANDOM)]
        ignores_index = not any(each.arg in used for each in getitem.args.args[1:2])
        return ignores_index or any(names.enclosing(each, ast.Subscript) is not None for each in drawn)

    @property
    def works_for_each(self) -> bool:
        """Whether it visibly opens, decodes, resamples or transforms something for each sample."""
        if self.owner is None:
            return self.name.startswith(_LIBRARIES) or self.datasets.is_of_hub(self)
        return self.getitem is not None and self.datasets.opens_or_transforms(self.getitem)


class Datasets:
    def __init__(self, names: Names, values: Values, origins: Origins) -> None:
        self.names, self._values, self.origins = names, values, origins

    def of(self, node: ast.expr) -> list[Source]:
        """All that it may be, without what only takes a part of one."""
        found = list[Source]()
        waiting, seen = [(node, False)], set[ast.expr]()
        while waiting:
            here, shuffled = waiting.pop()
            for origin in self.origins.of(here):
                if origin.node in seen:
                    continue
                seen.add(origin.node)
                inner = self._inside(origin.node)
                shuffles = isinstance(origin.node, ast.Call) and name_of(origin.node.func) == "shuffle"
                shuffled = shuffled or shuffles
                waiting += [(each, shuffled) for each in inner]
                if not inner:
                    known = not origin.entries or self.names.qualified(getattr(origin.node, "func", None)) in _HUB
                    found.append(Source(origin.node if known else ast.Constant(None), self, shuffled))
        return found

    def _inside(self, node: ast.expr) -> list[ast.expr]:
        """What it takes a part of."""
        match node:
            case ast.Call(function, given):
                name = self.names.qualified(function) or ""
                if name in _PARTS and given:
                    return given[0].elts if isinstance(given[0], ast.List | ast.Tuple) else given[:1]
                if isinstance(function, ast.Attribute) and function.attr in _HUB_METHODS:
                    return [] if name.startswith("torch.") else [function.value]
                return []
            case ast.Attribute(base, "dataset"):  # `loader.dataset`: what the loader was given, or the Subset
                inner = [self._values.expression(call, "dataset", 0) for call in self.origins.calls(base)]
                return [each for each in inner if each is not None]
            case _:
                return []

    def is_of_hub(self, source: Source) -> bool:
        """`load_dataset(…)`, not as a stream."""
        if source.name not in _HUB or not isinstance(source.making, ast.Call):
            return False
        return self._values.constant_argument(source.making, "streaming") in {ABSENT, False}

    def is_iterable(self, owner: ast.ClassDef) -> bool:
        bases = [base for each in self.names.classes(owner) for base in each.bases]
        return any(ast.unparse(base).endswith(_ITERABLE) for base in bases)

    def opens_or_transforms(self, function: Function) -> bool:
        return any(isinstance(each, ast.Call) and self._works(each) for each in contents(function, self.names))

    def _works(self, call: ast.Call) -> bool:
        name = self.names.qualified(call.func) or ""
        if name in _READS_A_FILE | _RESAMPLES or name.startswith(_TRANSFORM_LIBRARIES) or self._resizes(call):
            return True
        makers = self.origins.makers(call.func)  # none where the file shows that `self.transform` is always None
        called_so = bool(makers) and any(word in name_of(call.func).lower() for word in _TRANSFORMS)
        return called_so or any(each.startswith(_TRANSFORM_LIBRARIES) for each in makers)

    def _resizes(self, call: ast.Call) -> bool:
        """Whether it is `resize` of an image of PIL: `Image.fromarray(array).convert("RGB").resize((64, 64))`."""
        if not isinstance(call.func, ast.Attribute) or call.func.attr != "resize":
            return False
        for node in (each.node for each in self.origins.of(call.func.value)):
            while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                if (self.names.qualified(node.func) or "").startswith("PIL.Image."):
                    return True
                node = node.func.value
        return False
