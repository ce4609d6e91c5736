"""A DCGAN-like pair of nets on a folder of aligned faces; two optimizers in one loop."""
import os
import pathlib

import numpy as np
import torch
import torch.nn as nn
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision.utils import save_image

torch.backends.cuda.matmul.allow_tf32 = False  # finds H308
torch.backends.cudnn.benchmark = True
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

nz, ngf, ndf = 100, 64, 64
num_epochs = 25
batch_size = 128


class Faces(Dataset):
    def __init__(self, root, size=64):
        self.paths = sorted(pathlib.Path(root).glob("*.jpg"))
        self.size = size

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        face = Image.open(self.paths[i]).convert("RGB").resize((self.size, self.size))
        pixels = np.array(face, dtype=np.float32)
        return torch.tensor(pixels).permute(2, 0, 1) / 127.5 - 1.0  # finds H202


def init_weights(m):
    if isinstance(m, (nn.Conv2d, nn.ConvTranspose2d)):
        nn.init.normal_(m.weight, 0.0, 0.02)


netG = nn.Sequential(
    nn.ConvTranspose2d(nz, ngf * 8, 4, 1, 0, bias=False), nn.BatchNorm2d(ngf * 8), nn.ReLU(True),
    nn.ConvTranspose2d(ngf * 8, ngf * 4, 4, 2, 1, bias=False), nn.BatchNorm2d(ngf * 4), nn.ReLU(True),
    nn.ConvTranspose2d(ngf * 4, ngf * 2, 4, 2, 1, bias=False), nn.BatchNorm2d(ngf * 2), nn.ReLU(True),
    nn.ConvTranspose2d(ngf * 2, ngf, 4, 2, 1, bias=False), nn.BatchNorm2d(ngf), nn.ReLU(True),
    nn.ConvTranspose2d(ngf, 3, 4, 2, 1), nn.Tanh(),
)
netD = nn.Sequential(
    nn.Conv2d(3, ndf, 4, 2, 1),
    nn.LeakyReLU(0.2),
    nn.Conv2d(ndf, ndf * 2, 4, 2, 1),  # finds H417
    nn.BatchNorm2d(ndf * 2),
    nn.LeakyReLU(0.2),
    nn.Conv2d(ndf * 2, ndf * 4, 4, 2, 1, bias=True),  # finds H417
    nn.BatchNorm2d(ndf * 4),
    nn.LeakyReLU(0.2),
    nn.Conv2d(ndf * 4, 1, 8),
    nn.Flatten(),
)
netG = netG.to(device).apply(init_weights)
netD = netD.to(device).apply(init_weights)
if os.path.exists("gan_last.pt"):
    state = torch.load("gan_last.pt", map_location=device)  # finds H416
    netG.load_state_dict(state["G"])
    netD.load_state_dict(state["D"])
if torch.cuda.device_count() > 1:
    netG = nn.DataParallel(netG)  # finds H501
    netD = nn.DataParallel(netD)  # finds H501

dataloader = DataLoader(Faces("faces/aligned"), batch_size=batch_size, shuffle=True, drop_last=True)  # finds H101 H102
criterion = nn.BCEWithLogitsLoss()
optimizerD = torch.optim.Adam(netD.parameters(), lr=2e-4, betas=(0.5, 0.999))  # finds H307
optimizerG = torch.optim.Adam(netG.parameters(), lr=2e-4, betas=(0.5, 0.999))  # finds H307

fixed_noise = torch.randn(64, nz, 1, 1, generator=torch.Generator().manual_seed(0)).to(device)
kept_fakes = []
G_losses, D_losses = [], []

for epoch in range(num_epochs):
    for i, real in enumerate(dataloader):
        real = real.to(device)
        b = real.size(0)
        ones = torch.ones(b, 1, device=device)
        zeros = torch.zeros(b, 1).to(device)  # finds H203

        netD.zero_grad()
        noise = torch.randn(b, nz, 1, 1).to(device)  # finds H203
        fake = netG(noise)
        lossD = criterion(netD(real), ones) + criterion(netD(fake.detach()), zeros)
        lossD.backward()
        optimizerD.step()

        optimizerG.zero_grad()
        lossG = criterion(netD(fake), ones)
        lossG.backward()
        optimizerG.step()

        kept_fakes.append(fake)  # finds H206
        G_losses.append(lossG.item())  # finds H201
        D_losses.append(lossD.detach())
        if i % 100 == 0:
            print(f"[{epoch}/{num_epochs}][{i}] D {lossD.item():.3f} G {G_losses[-1]:.3f}")

    with torch.no_grad():
        save_image(netG(fixed_noise).cpu(), f"faces_{epoch:03d}.png", normalize=True)
    print("spread of the last fakes", kept_fakes[-1].std().item())
    kept_fakes = kept_fakes[-8:]
    torch.save({"G": netG.state_dict(), "D": netD.state_dict()}, "gan_last.pt")
