"""Trainers for surface-defect embeddings: a plain one, a mixed-precision one, and a last pass for the head."""
import torch
import torch.nn.functional as F
from defectlib.data import DefectCrops
from torch import nn
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader


class Stem(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.conv = nn.Conv2d(cin, cout, 5, stride=2, padding=2)  # finds H417
        self.norm = nn.BatchNorm2d(cout)
        self.mix = nn.Conv2d(cout, cout, 1)
        self.group = nn.GroupNorm(8, cout)

    def forward(self, x):
        x = torch.relu(self.norm(self.conv(x)))
        return torch.relu(self.group(self.mix(x)))


class Embedder(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.body = nn.Sequential(Stem(1, 32), Stem(32, 64), Stem(64, 128), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(128, classes)

    def forward(self, x):
        for part in self.body:
            x = part(x)
        return x, self.head(x)


class Trainer:
    every = 4

    def __init__(self, net, train, val, epochs=12, device="cuda"):
        self.net = net.to(device)
        self.train_loader, self.val_loader = train, val
        self.epochs, self.device = epochs, device
        self.optimizer = self.make_optimizer()
        self.bank = []

    def make_optimizer(self):
        return AdamW(self.net.parameters(), lr=3e-4)  # finds H307

    def on_device(self, batch):
        return [t.to(self.device, non_blocking=True) for t in batch]

    def compute_loss(self, x, y):
        emb, logits = self.net(x)
        self.bank.append(emb)  # finds H206
        return F.cross_entropy(logits, y, label_smoothing=0.05)

    def backward(self, loss):
        (loss / self.every).backward()

    def update(self):
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=False)  # finds H303

    def run_epoch(self):
        for i, batch in enumerate(self.train_loader):
            x, y = self.on_device(batch)
            self.backward(self.compute_loss(x, y))
            if (i + 1) % self.every == 0:  # finds H410
                self.update()

    @torch.no_grad()
    def validate(self):
        self.net.eval()  # finds H415
        right = count = 0
        for batch in self.val_loader:
            x, y = self.on_device(batch)
            right += (self.net(x)[1].argmax(1) == y).sum().item()
            count += len(y)
        return right / count

    def fit(self):
        self.net.train()
        for epoch in range(self.epochs):
            self.run_epoch()
            print(epoch, self.validate())
            self.bank = self.bank[-50:]


class MixedTrainer(Trainer):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.scaler = torch.cuda.amp.GradScaler()  # finds H408

    def make_optimizer(self):
        return SGD(self.net.parameters(), lr=0.05, momentum=0.9, foreach=True)

    def compute_loss(self, x, y):
        with torch.cuda.amp.autocast():  # finds H408
            _, logits = self.net(x)
            return F.cross_entropy(logits, y)

    def backward(self, loss):
        self.scaler.scale(loss / self.every).backward()

    def update(self):
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_value_(self.net.parameters(), 0.5)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()


def polish_head(net, loader, device="cuda"):
    """A short pass over the last layer alone."""
    net.train()
    opt = SGD(net.head.parameters(), lr=0.1)  # finds H307
    cycle = OneCycleLR(opt, max_lr=0.1, epochs=5, steps_per_epoch=len(loader))  # finds H404
    for _ in range(8):
        for x, y in loader:
            x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
            opt.zero_grad()
            F.cross_entropy(net(x)[1], y).backward()
            opt.step()
            cycle.step()


if __name__ == "__main__":
    common = dict(batch_size=64, num_workers=6, pin_memory=True, persistent_workers=True)
    train = DataLoader(DefectCrops("train"), shuffle=True, **common)
    val = DataLoader(DefectCrops("val"), **common)
    net = Embedder(classes=11)
    Trainer(net, train, val, epochs=3).fit()
    MixedTrainer(net, train, val, epochs=20).fit()
    polish_head(net, train)
