"""Road masks from aerial images: batches of two, gradients gathered over eight of them."""
import glob
import os

import numpy as np
import torch
import torch.nn as nn
from PIL import Image
from torch.utils.data import DataLoader, Dataset

EPOCHS = 30
ACCUMULATE = 8
DEVICE = "cuda"


class Roads(Dataset):
    def __init__(self, root):
        self.images = sorted(glob.glob(os.path.join(root, "sat", "*.jpg")))
        self.masks = sorted(glob.glob(os.path.join(root, "map", "*.png")))

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        image = np.asarray(Image.open(self.images[i]).convert("RGB"), dtype=np.float32) / 255.0
        mask = np.asarray(Image.open(self.masks[i]).convert("L"), dtype=np.float32) / 255.0
        return torch.from_numpy(image).permute(2, 0, 1), torch.from_numpy(mask)[None]


def double(cin, cout):
    return nn.Sequential(
        nn.Conv2d(cin, cout, 3, padding=1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(inplace=True),
        nn.Conv2d(cout, cout, 3, padding=1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(inplace=True),
    )


class MiniUNet(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.down1, self.down2 = double(3, width), double(width, 2 * width)
        self.pool = nn.MaxPool2d(2)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.last = double(2 * width, width)
        self.out = nn.Conv2d(width, 1, 1)

    def forward(self, x):
        a = self.down1(x)
        b = self.down2(self.pool(a))
        return self.out(self.last(torch.cat([a, self.up(b)], dim=1)))


train_loader = DataLoader(
    Roads("roads/train"), batch_size=2, shuffle=True, num_workers=6, pin_memory=True, persistent_workers=True
)
val_loader = DataLoader(Roads("roads/val"), batch_size=4, num_workers=6, persistent_workers=True)

model = MiniUNet().to(DEVICE)
criterion = nn.BCEWithLogitsLoss()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=1e-2)  # finds H307
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=EPOCHS)
scaler = torch.amp.GradScaler("cuda")

for epoch in range(EPOCHS):
    model.train()
    optimizer.zero_grad()
    epoch_loss = 0
    for step, (image, mask) in enumerate(train_loader):
        image = image.to(DEVICE, non_blocking=True)
        mask = mask.to(DEVICE, non_blocking=True)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = criterion(model(image), mask)
        scaler.scale(loss).backward()  # finds H409
        epoch_loss = epoch_loss + loss  # finds H205

        if (step + 1) % ACCUMULATE == 0:  # finds H410
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 2.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            print(f"{epoch}/{step}: {loss.item():.4f}")
        torch.cuda.empty_cache()  # memory was tight on the old card: finds H302
    schedule.step()

    model.eval()
    overlap = union = 0.0
    with torch.inference_mode():
        for image, mask in val_loader:
            guess = torch.sigmoid(model(image.to(DEVICE))) > 0.5
            truth = mask.to(DEVICE) > 0.5
            overlap += (guess & truth).sum().item()
            union += (guess | truth).sum().item()
    torch.cuda.empty_cache()
    print(f"epoch {epoch} loss {float(epoch_loss) / len(train_loader):.4f} iou {overlap / max(union, 1):.4f}")
