"""Three small trainings without hasten: what bench.whole_processes gives to a plain script and to a job alike.

Nothing here imports hasten: a plain script does not.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

SIDE, PHOTOS, BATCH = 64, 1600, 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """learning_rate: of Adam. train, valid: pairs of a sample and its class."""

    model: Callable[[], nn.Module]
    train: Dataset[Any]
    valid: Dataset[Any]
    epochs: int
    learning_rate: float = 1e-3


def rows() -> Work:
    """20 numbers a row."""
    generator = torch.Generator().manual_seed(0)
    samples, classes = torch.randn(20_000, 20, generator=generator), torch.randint(0, 3, (20_000,), generator=generator)
    return Work(
        model=lambda: nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3)),
        train=TensorDataset(samples[:16_000], classes[:16_000]),
        valid=TensorDataset(samples[16_000:], classes[16_000:]),
        epochs=4,
    )


def digits() -> Work:
    """Handwritten digits, 8×8 pixels."""
    from sklearn.datasets import load_digits

    images, classes = load_digits(return_X_y=True)
    images = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    classes = torch.tensor(classes)
    return Work(
        model=lambda: nn.Sequential(
            *(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU()),
            *(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(256, 10)),
        ),
        train=TensorDataset(images[:1500], classes[:1500]),
        valid=TensorDataset(images[1500:], classes[1500:]),
        epochs=6,
    )


def photos() -> Work:
    """JPEG files, decoded and cropped at random every time they are read."""
    return Work(
        model=lambda: nn.Sequential(
            *(nn.Conv2d(3, 32, 4, stride=4), nn.ReLU(), nn.Conv2d(32, 64, 3, stride=2), nn.ReLU()),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 4)),
        ),
        train=Photos(PHOTOS, is_cropped_at_random=True),
        valid=Photos(PHOTOS // 8, is_cropped_at_random=False),
        epochs=3,
    )


class Photos(Dataset[tuple[Tensor, int]]):
    """float32 [3, 64, 64] from 0 to 1, and the quarter of a photograph that it was cut from."""

    def __init__(self, count: int, *, is_cropped_at_random: bool) -> None:
        from PIL import Image
        from sklearn.datasets import load_sample_image

        self._is_cropped_at_random = is_cropped_at_random
        whole = Image.fromarray(load_sample_image("china.jpg"))
        drawn, self._files = random.Random(0), list[tuple[bytes, int]]()
        for number in range(count):
            quarter = number % 4
            left, top = 320 * (quarter % 2), 210 * (quarter // 2)
            left, top = left + drawn.randrange(160), top + drawn.randrange(57)
            file = BytesIO()
            whole.crop((left, top, left + 160, top + 160)).save(file, "JPEG")
            self._files.append((file.getvalue(), quarter))

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        import numpy as np
        from PIL import Image

        file, quarter = self._files[index]
        left, top = (
            (random.randrange(160 - SIDE), random.randrange(160 - SIDE)) if self._is_cropped_at_random else (48, 48)
        )
        image = Image.open(BytesIO(file)).convert("RGB").crop((left, top, left + SIDE, top + SIDE))
        return torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255, quarter


WORKS = {"rows": rows, "digits": digits, "photos": photos}
