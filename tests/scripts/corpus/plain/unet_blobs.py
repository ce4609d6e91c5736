# -*- coding: utf-8 -*-
# 用 U-Net 分割圆形细胞(合成数据)
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import Dataset, DataLoader
from tqdm import tqdm

# ---------------- 参数 ----------------
SEED = 3407
IMG_SIZE = 32
BATCH_SIZE = 8
NUM_EPOCHS = 4
LEARNING_RATE = 2e-3
DEVICE = torch.device('cuda' if torch.cuda.is_available() else 'cpu')

np.random.seed(SEED)
torch.manual_seed(SEED)


class CellDataset(Dataset):
    """每张图有 1-4 个圆形细胞"""
    def __init__(self, num):
        self.images, self.masks = [], []
        yy, xx = np.mgrid[:IMG_SIZE, :IMG_SIZE]
        for _ in range(num):
            mask = np.zeros((IMG_SIZE, IMG_SIZE), np.float32)
            for _ in range(np.random.randint(1, 5)):
                cy, cx = np.random.randint(4, IMG_SIZE - 4, 2)
                r = np.random.randint(2, 6)
                mask[(yy - cy) ** 2 + (xx - cx) ** 2 < r ** 2] = 1
            self.images.append(mask * 0.6 + np.random.randn(IMG_SIZE, IMG_SIZE) * 0.4)
            self.masks.append(mask)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image, mask = self.images[index], self.masks[index]
        if np.random.rand() > 0.5:  # 随机翻转
            image, mask = image[:, ::-1].copy(), mask[:, ::-1].copy()
        return torch.tensor(image, dtype=torch.float32).unsqueeze(0), torch.tensor(mask).unsqueeze(0)


class DoubleConv(nn.Module):
    def __init__(self, in_ch, out_ch):
        super(DoubleConv, self).__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(in_ch, out_ch, 3, padding=1, bias=False), nn.BatchNorm2d(out_ch), nn.ReLU(inplace=True),
            nn.Conv2d(out_ch, out_ch, 3, padding=1, bias=False), nn.BatchNorm2d(out_ch), nn.ReLU(inplace=True))

    def forward(self, x):
        return self.conv(x)


class UNet(nn.Module):
    def __init__(self, base=8):
        super(UNet, self).__init__()
        self.down1 = DoubleConv(1, base)
        self.down2 = DoubleConv(base, base * 2)
        self.bottom = DoubleConv(base * 2, base * 4)
        self.up2 = nn.ConvTranspose2d(base * 4, base * 2, 2, stride=2)
        self.dec2 = DoubleConv(base * 4, base * 2)
        self.up1 = nn.ConvTranspose2d(base * 2, base, 2, stride=2)
        self.dec1 = DoubleConv(base * 2, base)
        self.out = nn.Conv2d(base, 1, 1)

    def forward(self, x):
        d1 = self.down1(x)
        d2 = self.down2(F.max_pool2d(d1, 2))
        b = self.bottom(F.max_pool2d(d2, 2))
        u2 = self.dec2(torch.cat([self.up2(b), d2], dim=1))
        u1 = self.dec1(torch.cat([self.up1(u2), d1], dim=1))
        return self.out(u1)


def dice_loss(pred, target, smooth=1.):
    pred = torch.sigmoid(pred)
    inter = (pred * target).sum(dim=(2, 3))
    return (1 - (2 * inter + smooth) / (pred.sum(dim=(2, 3)) + target.sum(dim=(2, 3)) + smooth)).mean()


train_loader = DataLoader(CellDataset(240), batch_size=BATCH_SIZE, shuffle=True, drop_last=True)
val_loader = DataLoader(CellDataset(40), batch_size=BATCH_SIZE, shuffle=False)

model = UNet().to(DEVICE)
bce = nn.BCEWithLogitsLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)

for epoch in range(NUM_EPOCHS):
    model.train()
    loop = tqdm(train_loader, leave=False)
    losses = []
    for image, mask in loop:
        image, mask = image.to(DEVICE), mask.to(DEVICE)
        pred = model(image)
        loss = bce(pred, mask) + dice_loss(pred, mask)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        loop.set_postfix(loss=loss.item())

    model.eval()
    inter, union = 0, 0
    with torch.no_grad():
        for image, mask in val_loader:
            pred = (model(image.to(DEVICE)) > 0).cpu()
            inter += (pred & mask.bool()).sum().item()
            union += (pred | mask.bool()).sum().item()
    print('第 %d 轮: 训练损失 %.5f, IoU %.4f' % (epoch + 1, np.mean(losses), inter / union))
