"""A convolutional GAN that dreams up height maps of mountains."""
import numpy as np
import torch
import torch.nn as nn
import torch.optim as optim
from torch.utils.data import DataLoader, Dataset
from torchvision.utils import save_image

NZ, NGF, NDF = 100, 64, 64
EPOCHS = 200
device = torch.device("cuda:0")

torch.backends.cudnn.benchmark = False  # finds H301
torch.autograd.set_detect_anomaly(True)  # finds H304


class Heights(Dataset):
    """All patches sit in memory as one float array."""

    def __init__(self, path):
        self.maps = torch.from_numpy(np.load(path).astype(np.float32))

    def __len__(self):
        return self.maps.shape[0]

    def __getitem__(self, i):
        return self.maps[i].unsqueeze(0) * 2 - 1


class ScaleGrad(torch.autograd.Function):
    @staticmethod
    @torch.cuda.amp.custom_fwd  # finds H408
    def forward(ctx, x, k):
        ctx.k = k
        return x.view_as(x)

    @staticmethod
    @torch.cuda.amp.custom_bwd  # finds H408
    def backward(ctx, g):
        return g * ctx.k, None


netG = nn.Sequential(
    nn.ConvTranspose2d(NZ, NGF * 4, 4, 1, 0, bias=False),
    nn.BatchNorm2d(NGF * 4),
    nn.ReLU(True),
    nn.ConvTranspose2d(NGF * 4, NGF, 4, 4, 0),  # finds H417
    nn.BatchNorm2d(NGF),
    nn.ReLU(True),
    nn.ConvTranspose2d(NGF, 1, 4, 4, 0),
    nn.Tanh(),
)
netG = nn.DataParallel(netG.to(device))  # finds H501
netD = nn.Sequential(
    nn.Conv2d(1, NDF, 4, 4),
    nn.LeakyReLU(0.2),
    nn.Conv2d(NDF, NDF * 4, 4, 4),
    nn.InstanceNorm2d(NDF * 4),
    nn.LeakyReLU(0.2),
    nn.Conv2d(NDF * 4, 1, 4),
    nn.Flatten(0),
).to(device)

criterion = nn.BCEWithLogitsLoss()
optG = optim.Adam(netG.parameters(), lr=2e-4, betas=(0.5, 0.999))  # finds H307
optD = optim.RMSprop(netD.parameters(), lr=1e-4)
loader = DataLoader(Heights("alps_64.npy"), batch_size=128, shuffle=True, drop_last=True)  # finds H102
fixed = torch.randn(64, NZ, 1, 1, device=device)

G_losses = []
D_losses = []
for epoch in range(EPOCHS):
    for i, real in enumerate(loader):
        real = real.to(device)
        b = real.size(0)
        ones = torch.ones(b).to(device)  # finds H203
        zeros = torch.zeros_like(ones)

        # the judge
        noise = torch.randn(b, NZ, 1, 1).cuda()  # finds H203
        fake = netG(noise)
        errD = criterion(netD(real), ones) + criterion(netD(fake.detach()), zeros)
        errD.backward()
        optD.zero_grad()  # finds H401
        optD.step()
        D_losses.append(errD)  # finds H205

        # the forger
        optG.zero_grad()
        verdict = netD(ScaleGrad.apply(fake, 0.5))
        errG = criterion(verdict, ones)
        errG.backward()
        optG.step()
        G_losses.append(errG.detach())

        if i % 100 == 0:
            print("[%d/%d][%d/%d] D %.4f G %.4f" % (epoch, EPOCHS, i, len(loader), errD.item(), errG.item()))

    with torch.no_grad():
        save_image(netG(fixed), f"dream_{epoch:03d}.png", normalize=True)
    torch.save({"g": netG.module.state_dict(), "d": netD.state_dict()}, "terrain.pt")

print("mean G", torch.stack(G_losses).mean().item())
