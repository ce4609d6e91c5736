"""Jobs with one fault each, planted on purpose, and the same jobs without it.

Every job is healthy but for its fault: a convolutional network or a few layers on pictures that are in memory, whose
steps take some ten milliseconds on two cores. `mended` is what a person would do about the finding.

All of them are trained by PLAN: without it the C library gives large blocks back to the system in some processes and
not in others, so that two starts of a healthy job differ. That is a fault too, and planted in one of them.
"""

from __future__ import annotations

import ctypes
import io
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

import hasten
from hasten.facts.plan import Plan, make_plan

ROWS, CHANNELS, SIZE, CLASSES, BATCH = 2048, 3, 32, 10, 64
WIDTH = 32
_M_MMAP_THRESHOLD, _M_MMAP_MAX = -3, -4  # of glibc's malloc.h
REQUEST_SECONDS = 0.0005  # of a sample that comes from far away
PLAN = make_plan(allocator="keep_freed_memory")
Make = Callable[[bool], hasten.Job]


@dataclass(frozen=True, slots=True)
class Planted:
    """code: that must be found first. make: the job, mended where True is given. step_seconds: of the faster of both,
    roughly. samples: of a batch with the fault, and without it. plan_mends: the fault is that PLAN is not obeyed."""

    name: str
    code: str
    make: Make
    step_seconds: float = 0.014
    samples: int = BATCH
    samples_mended: int = BATCH
    plan_mends: bool = False

    def plan(self, mended: bool) -> Plan | None:
        return None if self.plan_mends and not mended else PLAN


def pictures() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return (
        torch.rand(ROWS, CHANNELS, SIZE, SIZE, generator=generator),
        torch.randint(CLASSES, (ROWS,), generator=generator),
    )


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(CHANNELS, WIDTH, 3, padding=1, bias=False),
        nn.BatchNorm2d(WIDTH),
        nn.ReLU(),
        nn.Conv2d(WIDTH, WIDTH, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(WIDTH),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(WIDTH, CLASSES),
    )


def job_of(**given: Any) -> hasten.Job:
    usual: dict[str, Any] = {
        "model": network,
        "loss": hasten.supervised(functional.cross_entropy),
        "optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
        "train": pictures(),
        "batch_size": BATCH,
        "epochs": 5,
    }
    return hasten.Job(**(usual | given))


# ── loading ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class FromFarAway(Dataset[Any]):
    """Each sample takes a while to come, and nothing is computed meanwhile."""

    def __init__(self, seconds: float) -> None:
        self._rows, self._labels = pictures()
        self._seconds, self._never = seconds, threading.Event()

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if self._seconds:
            self._never.wait(self._seconds)
        return self._rows[index], self._labels[index]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_never": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ = {**state, "_never": threading.Event()}


class OneByOne(Dataset[Any]):
    """Pictures, each put through a transform when it is asked for."""

    def __init__(self, transform: Callable[[Any], Tensor], rows: list[Any] | None = None) -> None:
        tensors, self._labels = pictures()
        self._rows, self._transform = rows if rows is not None else list(tensors), transform

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self._transform(self._rows[index]), self._labels[index]


def jittered(picture: Tensor) -> Tensor:
    """Each pixel apart, in Python."""
    values = picture[0].flatten().tolist()
    grey = [min(1.0, max(0.0, 1.1 * value + 0.02)) for value in values]
    return torch.stack([torch.tensor(grey).view(SIZE, SIZE), picture[1], picture[2]])


def smoothed(picture: Tensor) -> Tensor:
    """Blurred by large Fourier transforms."""
    padded = np.zeros((CHANNELS, 128, 128))
    padded[:, :SIZE, :SIZE] = picture.numpy()
    spectrum = np.fft.fft2(padded)
    spectrum[:, 20:-20] = 0
    return torch.from_numpy(np.fft.ifft2(spectrum).real[:, :SIZE, :SIZE].astype(np.float32))


def decoded(content: bytes) -> Tensor:
    """A compressed picture, many times as large as what the model is given."""
    picture = Image.open(io.BytesIO(content)).resize((SIZE, SIZE))
    return torch.from_numpy(np.asarray(picture).copy()).permute(2, 0, 1).float() / 255


def compressed() -> list[bytes]:
    noise = np.random.default_rng(0)
    buffer = io.BytesIO()
    Image.fromarray(noise.integers(0, 255, (160, 160, 3), dtype=np.uint8)).save(buffer, "PNG")
    return [buffer.getvalue()] * ROWS


def unchanged(picture: Tensor) -> Tensor:
    return picture


def far_away(mended: bool) -> hasten.Job:
    return job_of(train=FromFarAway(0.0 if mended else REQUEST_SECONDS))


def far_away_by_batch(mended: bool) -> hasten.Job:
    """The wait is in what puts a batch together."""
    wait = threading.Event()

    def collate(samples: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        if not mended:
            wait.wait(BATCH * REQUEST_SECONDS)
        rows, labels = zip(*samples, strict=True)
        return torch.stack(rows), torch.stack(labels)

    loader = torch.utils.data.DataLoader(OneByOne(unchanged), batch_size=BATCH, shuffle=True, collate_fn=collate)
    return job_of(train=loader, batch_size=None)


def pixel_by_pixel(mended: bool) -> hasten.Job:
    return job_of(train=OneByOne(unchanged if mended else jittered))


def large_transform(mended: bool) -> hasten.Job:
    return job_of(train=OneByOne(unchanged if mended else smoothed))


def decoding(mended: bool) -> hasten.Job:
    return job_of(train=OneByOne(unchanged) if mended else OneByOne(decoded, compressed()))


# ── reads and copies ────────────────────────────────────────────────────────────────────────────────────────────────


def accuracy_by_hand(mended: bool) -> hasten.Job:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        rows, labels = batch
        out = model(rows)
        if not mended:
            for _ in range(24):
                sum(float(score.max()) for score in out.detach())
        return functional.cross_entropy(out, labels)

    return job_of(loss=loss)


def norms_of_weights(mended: bool) -> hasten.Job:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        rows, labels = batch
        if not mended:
            for _ in range(80):
                [parameter.norm().item() for parameter in model.parameters()]
        return functional.cross_entropy(model(rows), labels)

    return job_of(loss=loss)


class Converting(nn.Module):
    """Layers, and what is put between them."""

    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        layers = network()
        self.first, self.rest, self.between = layers[:3], layers[3:], between

    def forward(self, rows: Tensor) -> Tensor:
        return self.rest(self.between(self.first(rows)))


def there_and_back(activation: Tensor) -> Tensor:
    return activation.double().float().double().float()


def laid_out_again(activation: Tensor) -> Tensor:
    last = activation.permute(0, 2, 3, 1).contiguous()
    first = last.permute(0, 3, 1, 2).contiguous()
    return first.clone()


def to_double(mended: bool) -> hasten.Job:
    return job_of(model=lambda: Converting(unchanged if mended else there_and_back))


def to_other_layout(mended: bool) -> hasten.Job:
    return job_of(model=lambda: Converting(unchanged if mended else laid_out_again))


def waiting_in_the_loss(mended: bool) -> hasten.Job:
    """As for an answer of a service that keeps track of losses."""
    never = threading.Event()

    def loss(model: nn.Module, batch: Any) -> Tensor:
        rows, labels = batch
        found = functional.cross_entropy(model(rows), labels)
        if not mended:
            never.wait(0.01)
        return found

    return job_of(loss=loss)


# ── small operations ────────────────────────────────────────────────────────────────────────────────────────────────


def tiny_batch(mended: bool) -> hasten.Job:
    return job_of(batch_size=BATCH if mended else 1)


def tiny_batch_of_rows(mended: bool) -> hasten.Job:
    rows, labels = torch.randn(ROWS, 64), pictures()[1]
    layers = [nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, CLASSES)]
    return job_of(train=(rows, labels), model=lambda: nn.Sequential(*layers), batch_size=512 if mended else 8)


class ByChannel(nn.Module):
    """A scale and a shift for each channel, one channel after the other or all at once."""

    def __init__(self, at_once: bool) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.zeros(WIDTH))
        self.first, self.rest, self.at_once = network()[:3], network()[3:], at_once

    def forward(self, rows: Tensor) -> Tensor:
        activation = functional.max_pool2d(self.first(rows), 4)
        if self.at_once:
            scaled = activation * self.scale[:, None, None] + self.shift[:, None, None]
        else:
            channels = []
            for channel in range(WIDTH):
                one = activation[:, channel] * self.scale[channel]
                channels.append(one + self.shift[channel])
            scaled = torch.stack(channels, 1)
        return self.rest(scaled)


class BySample(nn.Module):
    """A distance from each sample to each of a few centres."""

    def __init__(self, at_once: bool) -> None:
        super().__init__()
        self.body, self.centres, self.at_once = network()[:8], nn.Parameter(torch.randn(CLASSES, WIDTH)), at_once

    def forward(self, rows: Tensor) -> Tensor:
        features = self.body(rows)
        if self.at_once:
            return -torch.cdist(features, self.centres)
        return torch.stack([self._distances(each) for each in features])

    def _distances(self, feature: Tensor) -> Tensor:
        return torch.stack([-(feature - centre).norm() for centre in self.centres])


def channel_by_channel(mended: bool) -> hasten.Job:
    return job_of(model=lambda: ByChannel(mended))


def sample_by_sample(mended: bool) -> hasten.Job:
    return job_of(model=lambda: BySample(mended))


# ── memory ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def losses_with_graphs(mended: bool) -> hasten.Job:
    history: list[Tensor] = []

    def loss(model: Any, batch: Any) -> Tensor:
        rows, labels = batch
        spread = (rows * model[0].weight.mean()).square().mean()  # a term that only a log is meant to see
        history.append(spread.detach() if mended else spread)
        return functional.cross_entropy(model(rows), labels)

    return job_of(loss=loss)


def batches_kept(mended: bool) -> hasten.Job:
    seen: list[Tensor] = []

    def loss(model: nn.Module, batch: Any) -> Tensor:
        rows, labels = batch
        if not mended:
            seen.append(rows.clone())
        return functional.cross_entropy(model(rows), labels)

    return job_of(loss=loss)


def memory_given_back(mended: bool) -> hasten.Job:
    """Blocks of a mebibyte and more are the system's own, as in a process in which the C library has not adapted."""

    def model() -> nn.Module:
        if not mended:
            ask = ctypes.CDLL(None).mallopt
            ask(_M_MMAP_MAX, 65536)
            ask(_M_MMAP_THRESHOLD, 1 << 20)
        return network()

    return job_of(model=model)


ALL = (
    Planted("far_away", "H701", far_away),
    Planted("far_away_by_batch", "H701", far_away_by_batch),
    Planted("pixel_by_pixel", "H702", pixel_by_pixel),
    Planted("large_transform", "H702", large_transform),
    Planted("decoding", "H702", decoding),
    Planted("tiny_batch", "H703", tiny_batch, step_seconds=0.0015, samples=1),
    Planted("tiny_batch_of_rows", "H703", tiny_batch_of_rows, step_seconds=0.0006, samples=8, samples_mended=512),
    Planted("channel_by_channel", "H704", channel_by_channel),
    Planted("sample_by_sample", "H704", sample_by_sample),
    Planted("accuracy_by_hand", "H705", accuracy_by_hand),
    Planted("norms_of_weights", "H705", norms_of_weights),
    Planted("to_double", "H706", to_double),
    Planted("to_other_layout", "H706", to_other_layout),
    Planted("losses_with_graphs", "H707", losses_with_graphs),
    Planted("batches_kept", "H707", batches_kept),
    Planted("waiting_in_the_loss", "H712", waiting_in_the_loss),
    Planted("memory_given_back", "H715", memory_given_back, plan_mends=True),
)
