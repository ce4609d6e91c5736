"""Rooms seen by a robot: depth, normals and tags from one trunk, with a weight for each task."""
import dataclasses

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader

from rooms.io import RoomFrames


@dataclasses.dataclass
class Settings:
    train_root: str = "rooms/train"
    val_root: str = "rooms/val"
    tags: int = 40
    epochs: int = 20
    batch: int = 32
    lr: float = 0.01
    depth_weight: float = 1.0
    normal_weight: float = 0.5
    tag_weight: float = 0.2


class Trunk(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Conv2d(3, 64, 5, stride=2, padding=2)
        self.b = nn.Conv2d(64, 128, 3, stride=2, padding=1)
        self.norm_a = nn.GroupNorm(8, 64)
        self.norm_b = nn.GroupNorm(8, 128)

    def forward(self, x):
        x = F.relu(self.norm_a(self.a(x)))
        return F.relu(self.norm_b(self.b(x)))


class RoomNet(nn.Module):
    def __init__(self, tags):
        super().__init__()
        self.trunk = Trunk()
        self.depth = nn.Conv2d(128, 1, 1)
        self.normals = nn.Conv2d(128, 3, 1)
        self.tagger = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Dropout(0.3),
            nn.Linear(128, tags),
            nn.Sigmoid(),  # the loss has its own: finds H412
        )

    def forward(self, x):
        z = self.trunk(x)
        return self.depth(z), F.normalize(self.normals(z), dim=1), self.tagger(z)


class MultiTaskTrainer:
    def __init__(self, settings: Settings):
        self.s = settings
        self.device = "cuda"
        self.net = RoomNet(settings.tags).to(self.device)
        common = dict(batch_size=settings.batch, num_workers=6, pin_memory=True, persistent_workers=True)
        self.train_loader = DataLoader(RoomFrames(settings.train_root), shuffle=True, **common)
        self.val_loader = DataLoader(RoomFrames(settings.val_root), **common)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=settings.lr, momentum=0.9)  # finds H307
        total = settings.epochs * len(self.train_loader)
        self.sched = torch.optim.lr_scheduler.CosineAnnealingLR(self.opt, T_max=total)
        self.tag_loss = nn.BCEWithLogitsLoss()

    def losses(self, batch):
        image = batch["image"].to(self.device)  # finds H204
        depth_to = batch["depth"].to(self.device, non_blocking=True)
        normals_to = batch["normals"].to(self.device, non_blocking=True)
        tags_to = batch["tags"].to(self.device, non_blocking=True)
        depth, normals, tags = self.net(image)
        depth_loss = F.l1_loss(depth, depth_to)
        normal_loss = 1 - F.cosine_similarity(normals, normals_to).mean()
        return depth_loss, normal_loss, self.tag_loss(tags, tags_to)

    def epoch(self):
        depth_sum = normal_sum = tag_sum = 0.0
        for n, batch in enumerate(self.train_loader, 1):
            depth_loss, normal_loss, tag_loss = self.losses(batch)
            loss = (
                self.s.depth_weight * depth_loss
                + self.s.normal_weight * normal_loss
                + self.s.tag_weight * tag_loss
            )
            self.opt.zero_grad()
            loss.backward()
            self.sched.step()  # finds H402
            self.opt.step()
            depth_sum += depth_loss  # finds H205
            normal_sum += normal_loss.detach()
            tag_sum += tag_loss.item()  # finds H201
            if n % 25 == 0:
                print(n, float(loss), float(depth_sum) / n, float(normal_sum) / n, tag_sum / n)

    def validate(self):
        self.net.eval()  # dropout stays off from here on: finds H415
        worst = 0.0
        with torch.no_grad():
            for batch in self.val_loader:
                depth, _, _ = self.net(batch["image"].to(self.device))
                gap = (depth - batch["depth"].to(self.device)).abs().mean()
                worst = max(worst, gap.item())
        return worst

    def run(self):
        self.net.train()
        for number in range(self.s.epochs):
            self.epoch()
            print("epoch", number, "worst depth gap", self.validate())


if __name__ == "__main__":
    MultiTaskTrainer(Settings()).run()
