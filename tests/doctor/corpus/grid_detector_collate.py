"""Detector that predicts one box for each grid cell; variable numbers of boxes go through a collate function."""

import json
import random

import numpy as np
import torch
import torch.nn.functional as fun
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torchvision.io import read_image

GRID = 13
SIZES = [320, 352, 384, 416, 448]
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.backends.cudnn.benchmark = True  # finds H301


class Annotated(Dataset):
    def __init__(self, index):
        with open(index) as handle:
            self.entries = json.load(handle)

    def __len__(self):
        return len(self.entries)

    def __getitem__(self, i):
        entry = self.entries[i]
        image = read_image(entry["file"]).float() / 255
        boxes = np.array(entry["boxes"], dtype=np.float32).reshape(-1, 4)
        return image, {"boxes": torch.tensor(boxes), "labels": torch.tensor(entry["labels"])}  # finds H202


def collate(batch):
    images, targets = zip(*batch)
    return torch.stack(images), list(targets)


def collate_to_device(samples):
    images = torch.stack([image for image, _ in samples]).to(device)
    flags = torch.stack([flag for _, flag in samples]).to(device)
    return images, flags


def stage(n_in, n_out):
    return nn.Sequential(
        nn.Conv2d(n_in, n_out, 3, padding=1, bias=False), nn.BatchNorm2d(n_out), nn.LeakyReLU(0.1), nn.MaxPool2d(2)
    )


class Detector(nn.Module):
    def __init__(self, classes):
        super().__init__()
        widths = [3, 16, 32, 64, 128, 256]
        self.backbone = nn.Sequential(*[stage(a, b) for a, b in zip(widths[:-1], widths[1:])])
        self.head = nn.Conv2d(widths[-1], 5 + classes, 1)

    def forward(self, images):
        return fun.adaptive_avg_pool2d(self.head(self.backbone(images)), GRID)


def assign(boxes, labels):
    """The grid of what should be predicted, for one image."""
    objectness = torch.zeros(GRID, GRID, device=boxes.device)
    regression = torch.zeros(4, GRID, GRID, device=boxes.device)
    classes = torch.full((GRID, GRID), -100, device=boxes.device)
    column = (boxes[:, 0] * GRID).long().clamp(0, GRID - 1)
    row = (boxes[:, 1] * GRID).long().clamp(0, GRID - 1)
    objectness[row, column] = 1
    regression[:, row, column] = boxes.t()
    classes[row, column] = labels
    return objectness, regression, classes


def detection_loss(out, targets):
    # targets is a list of dictionaries, so this goes over images and not over the elements of a tensor
    objectness, regression, classes = map(torch.stack, zip(*[assign(t["boxes"], t["labels"]) for t in targets]))
    found = fun.binary_cross_entropy_with_logits(out[:, 0], objectness)
    mask = objectness[:, None]
    place = (fun.smooth_l1_loss(out[:, 1:5], regression, reduction="none") * mask).sum() / mask.sum().clamp(min=1)
    kind = fun.cross_entropy(out[:, 5:], classes, ignore_index=-100)
    return found + place + kind


@torch.inference_mode()
def evaluate(model, loader):
    model.eval()
    total = 0.0
    for images, targets in loader:
        targets = [{k: v.to(device) for k, v in t.items()} for t in targets]
        total += detection_loss(model(images.to(device)), targets).item()
    model.train()
    return total / len(loader)


def warm_up_head(model):
    """Object or no object, on crops that are small enough for memory."""
    crops = torch.load("crops.pt")  # finds H416
    data = TensorDataset(crops["images"], crops["flags"])
    loader = DataLoader(data, batch_size=64, shuffle=True, collate_fn=collate_to_device)
    optimizer = torch.optim.SGD(model.head.parameters(), lr=0.01, foreach=True)
    for images, flags in loader:
        loss = fun.binary_cross_entropy_with_logits(model(images)[:, 0].amax((1, 2)), flags)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def main():
    train_loader = DataLoader(  # finds H103 H104
        Annotated("train.json"), batch_size=16, num_workers=8, pin_memory=True, collate_fn=collate
    )
    val_loader = DataLoader(Annotated("val.json"), batch_size=16, num_workers=4, persistent_workers=True,
                            collate_fn=collate)
    model = Detector(classes=20).to(device)
    warm_up_head(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)  # finds H307
    areas = []
    for epoch in range(60):
        for step, (images, targets) in enumerate(train_loader):
            images = images.to(device)  # finds H204
            targets = [{k: v.to(device, non_blocking=True) for k, v in t.items()} for t in targets]
            size = random.choice(SIZES)
            images = fun.interpolate(images, size=(size, size), mode="bilinear")
            out = model(images)
            loss = detection_loss(out, targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            widths = out[:, 3].detach().flatten()
            for width in widths:  # finds H207
                areas.append(width.abs())
            if step % 50 == 0:
                print(epoch, step, size, loss.item())
        print("validation", evaluate(model, val_loader))


if __name__ == "__main__":
    main()
