"""Trains for EPOCHS in all. If checkpoints/ has a checkpoint, goes on from the newest."""
import glob
import os
import re

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 6
CKPT_DIR = os.path.join(os.path.dirname(os.path.abspath(__file__)), "checkpoints")
os.makedirs(CKPT_DIR, exist_ok=True)


def latest_checkpoint():
    found = glob.glob(os.path.join(CKPT_DIR, "epoch_*.pt"))
    if not found:
        return None
    return max(found, key=lambda f: int(re.search(r"epoch_(\d+)", f).group(1)))


def save_checkpoint(epoch, model, optimizer, scheduler, loss):
    path = os.path.join(CKPT_DIR, f"epoch_{epoch}.pt")
    torch.save({
        "epoch": epoch,
        "model_state_dict": model.state_dict(),
        "optimizer_state_dict": optimizer.state_dict(),
        "scheduler_state_dict": scheduler.state_dict(),
        "rng": torch.get_rng_state(),
        "loss": loss,
    }, path + ".tmp")
    os.replace(path + ".tmp", path)
    old = os.path.join(CKPT_DIR, f"epoch_{epoch - 2}.pt")  # keep two
    if os.path.exists(old):
        os.remove(old)


class AutoEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(50, 32), nn.Tanh(), nn.Linear(32, 5))
        self.dec = nn.Sequential(nn.Linear(5, 32), nn.Tanh(), nn.Linear(32, 50))

    def forward(self, x):
        return self.dec(self.enc(x))


torch.manual_seed(77)
basis = torch.randn(5, 50)
data = torch.tanh(torch.randn(4000, 5) @ basis) + 0.05 * torch.randn(4000, 50)
loader = DataLoader(TensorDataset(data), batch_size=80, shuffle=True)

model = AutoEncoder()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, amsgrad=True)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1, factor=0.5)
start_epoch = 0

ckpt = latest_checkpoint()
if ckpt is not None:
    state = torch.load(ckpt, weights_only=True)
    model.load_state_dict(state["model_state_dict"])
    optimizer.load_state_dict(state["optimizer_state_dict"])
    scheduler.load_state_dict(state["scheduler_state_dict"])
    torch.set_rng_state(state["rng"])
    start_epoch = state["epoch"] + 1
    print(f"=> resumed from {os.path.basename(ckpt)}, loss was {state['loss']:.6f}")

for epoch in range(start_epoch, EPOCHS):
    total = 0.0
    for (x,) in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), x)
        loss.backward()
        optimizer.step()
        total += loss.item()
    total /= len(loader)
    scheduler.step(total)
    print(f"epoch {epoch} loss {total:.6f} lr {optimizer.param_groups[0]['lr']}")
    save_checkpoint(epoch, model, optimizer, scheduler, total)
print("nothing left to do" if start_epoch >= EPOCHS else "done")
