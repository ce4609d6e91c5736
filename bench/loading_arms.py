"""The arms of the loading benchmark: JPEG files in, what a model takes out.

Every arm but the two ceilings delivers the same thing: batches of random crops of 224 × 224, mirrored half of the time,
float32 (N, 3, 224, 224), normalised by ImageNet's mean and deviation, and labels, int64 (N,); each picture once an
epoch, in a new order; on the accelerator where there is one. An arm that sends bytes there and makes floats on the
device is charged for that.

The pictures' files stay as they are for hasten and the DataLoader. webdataset and litdata read files of their own,
which are written while the arm is built.
"""

from __future__ import annotations

import io
import math
import os
import tarfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench.endless import Epoch, endless
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

SIZE = 224
MEAN, DEVIATION = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
SHARDS = 16
AHEAD = 4  # batches that each worker of a peer keeps ready

Batch = tuple[Tensor, Tensor]


def arm(loader: str, **arguments: Any) -> Callable[[int], None]:
    """loader: a name in LOADERS. arguments: what that function takes."""
    return endless(LOADERS[loader](**arguments))


def here() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def files(folder: str) -> list[tuple[str, int]]:
    """Every picture's path and label; the label is its class folder's place among all."""
    classes = sorted(entry.name for entry in os.scandir(folder))
    return [(str(path), label) for label, name in enumerate(classes) for path in sorted(Path(folder, name).iterdir())]


# ── Pillow, as torchvision uses it ──────────────────────────────────────────────────────────────────────────────────


class Pictures(Dataset[Any]):
    """torchvision's ImageFolder with RandomResizedCrop(224), RandomHorizontalFlip, ToTensor and Normalize, step by step
    as their code has it. Written out here, because torchvision has no build for every torch that this is run with.

    Source: torchvision/datasets/folder.py and torchvision/transforms, version 0.24.
    """

    def __init__(self, folder: str, size: int = SIZE) -> None:
        self._files, self._size = files(folder), size

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        path, label = self._files[index]
        with open(path, "rb") as file:
            picture = Image.open(file).convert("RGB")
        return shown(picture, self._size), label


def shown(picture: Image.Image, size: int = SIZE) -> Tensor:
    """A random part of a picture as a model takes it: float32 (3, size, size)."""
    left, top, width, height = _random_part(picture.width, picture.height)
    picture = picture.crop((left, top, left + width, top + height)).resize((size, size), Image.Resampling.BILINEAR)
    if torch.rand(1) < 0.5:
        picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    pixels = torch.from_numpy(np.array(picture, copy=True)).permute(2, 0, 1).contiguous()
    floats = pixels.to(torch.float32).div(255).clone()
    return floats.sub_(MEAN.view(-1, 1, 1)).div_(DEVIATION.view(-1, 1, 1))


def _random_part(width: int, height: int) -> tuple[int, int, int, int]:
    """RandomResizedCrop.get_params: left, top, width and height."""
    log_ratio = torch.log(torch.tensor([3 / 4, 4 / 3]))
    for _ in range(10):
        area = height * width * torch.empty(1).uniform_(0.08, 1.0).item()
        ratio = torch.exp(torch.empty(1).uniform_(log_ratio[0].item(), log_ratio[1].item())).item()
        wide, tall = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < wide <= width and 0 < tall <= height:
            top = int(torch.randint(0, height - tall + 1, size=(1,)).item())
            return int(torch.randint(0, width - wide + 1, size=(1,)).item()), top, wide, tall
    wide, tall = min(width, round(height * 4 / 3)), min(height, round(width * 4 / 3))
    return (width - wide) // 2, (height - tall) // 2, wide, tall


def dataloader(folder: str, batch_size: int, workers: int, size: int = SIZE) -> Epoch:
    """Without workers as its documentation begins."""
    pinned = here().type == "cuda"
    loader = DataLoader(
        Pictures(folder, size), batch_size=batch_size, shuffle=True, pin_memory=pinned, **_tuned(workers)
    )
    return lambda: _placed(loader)


def _tuned(workers: int) -> dict[str, Any]:
    """Arguments of a DataLoader: its workers stay, and each keeps more batches ready than the two of the default."""
    return {"num_workers": workers, "persistent_workers": True, "prefetch_factor": AHEAD} if workers else {}


def _placed(batches: Any) -> Iterator[Batch]:
    device = here()
    for pixels, labels in batches:
        yield pixels.to(device, non_blocking=True), labels.to(device, non_blocking=True)


# ── other libraries ─────────────────────────────────────────────────────────────────────────────────────────────────


def webdataset(folder: str, batch_size: int, workers: int) -> Epoch:
    """Its usual pipeline: shards and samples shuffled, Pillow decodes, batches made in the worker."""
    from webdataset.compat import WebDataset, WebLoader
    from webdataset.shardlists import split_by_node

    urls = _write_shards(folder)
    data = (
        WebDataset(urls, shardshuffle=SHARDS, nodesplitter=split_by_node, empty_check=False)
        .shuffle(1000)
        .decode("pilrgb")
        .to_tuple("jpg", "cls")
        .map_tuple(shown, int)
        .batched(batch_size)
    )
    loader = WebLoader(data, batch_size=None, pin_memory=here().type == "cuda", **_tuned(workers))
    return lambda: _placed((pixels, torch.as_tensor(labels)) for pixels, labels in loader)


def _write_shards(folder: str) -> list[str]:
    """Tar files in the working directory, each with a random part of all pictures."""
    listed = files(folder)
    order = torch.randperm(len(listed), generator=torch.Generator().manual_seed(0)).tolist()
    urls = [os.path.abspath(f"shard-{number:04}.tar") for number in range(SHARDS)]
    for number, url in enumerate(urls):
        with tarfile.open(url, "w") as shard:
            for index in order[number::SHARDS]:
                path, label = listed[index]
                for name, content in ((f"{index:06}.jpg", Path(path).read_bytes()), (f"{index:06}.cls", b"%d" % label)):
                    member = tarfile.TarInfo(name)
                    member.size = len(content)
                    shard.addfile(member, io.BytesIO(content))
    return urls


def litdata(folder: str, batch_size: int, workers: int) -> Epoch:
    """Its streaming data set over chunks on this disk, shuffled; Pillow decodes."""
    import litdata as ld  # pyright: ignore[reportMissingImports]

    from bench import loading_arms as named  # its processes import these functions by name

    ld.optimize(fn=named.encoded, inputs=files(folder), output_dir="chunks", chunk_bytes="64MB", num_workers=2)
    data = ld.StreamingDataset("chunks", shuffle=True, transform=named.decoded)
    loader = ld.StreamingDataLoader(data, batch_size=batch_size, pin_memory=here().type == "cuda", **_tuned(workers))
    return lambda: _placed(loader)


def encoded(file: tuple[str, int]) -> tuple[bytes, int]:
    return Path(file[0]).read_bytes(), file[1]


def decoded(sample: tuple[bytes, int]) -> tuple[Tensor, int]:
    content, label = sample
    return shown(Image.open(io.BytesIO(content)).convert("RGB")), label


# ── hasten ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def hasten(folder: str, batch_size: int, threads: int) -> Epoch:
    """Its own pictures through its own loader, read by threads."""
    from hasten.data.images.crops import RandomResizedCrop
    from hasten.data.images.image_folder import ImageFolder

    return _loaded(ImageFolder(folder, RandomResizedCrop(SIZE)), batch_size, threads)


def hasten_cached(folder: str, batch_size: int, threads: int) -> Epoch:
    """The same from a cache of what the files decode to, which is built in the working directory."""
    from hasten.data.cache.cache_building import open_cache
    from hasten.data.images.crops import RandomResizedCrop
    from hasten.data.images.image_folder import ImageFolder

    pictures = ImageFolder(folder, RandomResizedCrop(SIZE))
    cached = open_cache(pictures.steady, Path("cache").absolute())
    return _loaded(pictures.with_steady(cached), batch_size, threads)


def _loaded(pictures: Any, batch_size: int, threads: int) -> Epoch:
    from hasten.data.loading.batch_loader import TrainLoader
    from hasten.data.loading.device_transfer import place
    from hasten.data.loading.loader_options import LoaderOptions, Placement
    from hasten.data.sources.job_data import source_of

    device, source, numbers = here(), source_of(pictures, field="train"), count()
    on_accelerator = device.type == "cuda"
    loader = TrainLoader(
        source,
        batch_size=batch_size,
        options=LoaderOptions(workers=threads, worker_kind="threads", pin_memory=on_accelerator),
        seed=0,
        placement=Placement(accelerator=on_accelerator),
    )

    def epoch() -> Iterator[Batch]:
        for microbatch in loader.epoch(next(numbers)):
            yield source.finished(place(microbatch.batch, device, non_blocking=on_accelerator))

    return epoch


LOADERS: dict[str, Callable[..., Epoch]] = {
    loader.__name__: loader for loader in (dataloader, webdataset, litdata, hasten, hasten_cached)
}


# ── ceilings: what no loader that decodes these files can exceed ────────────────────────────────────────────────────


def decode_only(folder: str, batch_size: int, threads: int, exact: bool) -> Callable[[int], None]:
    """Every file read and decoded into a buffer that is used again, and thrown away; no order, no crop, no batch.

    exact: libjpeg's accurate transform and smooth colours, as Pillow has them; otherwise its fastest of both.
    """
    import simplejpeg

    paths = [path for path, _ in files(folder)]
    pool = ThreadPoolExecutor(threads)

    def decode(chosen: Sequence[str]) -> None:
        buffer = np.empty(3 << 20, dtype=np.uint8)
        for path in chosen:
            with open(path, "rb") as file:
                simplejpeg.decode_jpeg(file.read(), fastdct=not exact, fastupsample=not exact, buffer=buffer)

    def window(steps: int) -> None:
        wanted = [paths[number % len(paths)] for number in range(steps * batch_size)]
        list(pool.map(decode, [wanted[thread::threads] for thread in range(threads)]))

    return window
