"""Train a DCGAN on a folder of faces, in the manner of 2018."""
from __future__ import print_function

import argparse
import random

import torch
import torch.backends.cudnn as cudnn
import torch.nn as nn
import torch.optim as optim
import torchvision.datasets as dset
import torchvision.transforms as transforms
import torchvision.utils as vutils

parser = argparse.ArgumentParser()
parser.add_argument('--dataroot', required=True)
parser.add_argument('--batchSize', type=int, default=64)
parser.add_argument('--nz', type=int, default=100)
parser.add_argument('--niter', type=int, default=25)
parser.add_argument('--ngpu', type=int, default=1)
parser.add_argument('--netG', default='', help='continue from this generator')
parser.add_argument('--netD', default='', help='continue from this discriminator')
opt = parser.parse_args()

torch.manual_seed(random.randint(1, 10000))
cudnn.benchmark = True
device = torch.device('cuda:0' if torch.cuda.is_available() else 'cpu')

dataset = dset.ImageFolder(root=opt.dataroot,
                           transform=transforms.Compose([
                               transforms.Resize((32, 32)),
                               transforms.ToTensor(),
                               transforms.Normalize((0.5,) * 3, (0.5,) * 3),
                           ]))
dataloader = torch.utils.data.DataLoader(dataset, batch_size=opt.batchSize, shuffle=True)  # finds H101 H102

netG = nn.Sequential(
    nn.ConvTranspose2d(opt.nz, 256, 4, 1, 0, bias=False),
    nn.BatchNorm2d(256),
    nn.ReLU(True),
    nn.ConvTranspose2d(256, 128, 4, 2, 1),  # finds H417
    nn.BatchNorm2d(128),
    nn.ReLU(True),
    nn.ConvTranspose2d(128, 64, 4, 2, 1, bias=False),
    nn.BatchNorm2d(64),
    nn.ReLU(True),
    nn.ConvTranspose2d(64, 3, 4, 2, 1),
    nn.Tanh(),
).to(device)
netD = nn.Sequential(
    nn.Conv2d(3, 64, 4, 2, 1),
    nn.LeakyReLU(0.2, inplace=True),
    nn.Conv2d(64, 128, 4, 2, 1, bias=False),
    nn.BatchNorm2d(128),
    nn.LeakyReLU(0.2, inplace=True),
    nn.Conv2d(128, 1, 8, 1, 0),
    nn.Sigmoid(),
).to(device)

if opt.netG != '':
    netG.load_state_dict(torch.load(opt.netG))  # finds H416
if opt.netD != '':
    netD.load_state_dict(torch.load(opt.netD, weights_only=True))
if opt.ngpu > 1:
    netG = nn.DataParallel(netG, list(range(opt.ngpu)))  # finds H501
    netD = nn.DataParallel(netD, list(range(opt.ngpu)))  # finds H501

criterion = nn.BCELoss()
fixed_noise = torch.randn(64, opt.nz, 1, 1).to(device)  # finds H203

optimizerD = optim.Adam(netD.parameters(), lr=2e-4, betas=(0.5, 0.999))  # finds H307
optimizerG = optim.Adam(netG.parameters(), lr=2e-4, betas=(0.5, 0.999))  # finds H307
schedulerD = optim.lr_scheduler.ExponentialLR(optimizerD, gamma=0.98)
schedulerG = optim.lr_scheduler.ExponentialLR(optimizerG, gamma=0.98)
G_losses = []
D_losses = []

for epoch in range(opt.niter):
    schedulerG.step()  # finds H402
    for i, data in enumerate(dataloader):
        # (1) the discriminator: real, then fake
        netD.zero_grad()
        real = data[0].to(device)
        label = torch.full((real.size(0),), 1.0, device=device)
        errD_real = criterion(netD(real).view(-1), label)
        errD_real.backward()
        noise = torch.randn(real.size(0), opt.nz, 1, 1, device=device)
        fake = netG(noise)
        label.fill_(0.0)
        errD_fake = criterion(netD(fake.detach()).view(-1), label)
        errD_fake.backward()
        optimizerD.step()

        # (2) the generator
        netG.zero_grad()
        label.fill_(1.0)
        errG = criterion(netD(fake).view(-1), label)
        errG.backward()
        optimizerG.step()

        G_losses.append(errG)  # finds H205
        D_losses.append((errD_real.detach() + errD_fake.detach()))
        print('[%d/%d][%d/%d] Loss_G: %.4f' % (epoch, opt.niter, i, len(dataloader), errG.item()))  # finds H201
        torch.cuda.empty_cache()  # finds H302

        if i % 100 == 0:
            print('Loss_D: %.4f' % D_losses[-1].item())
            with torch.no_grad():
                shown = netG(fixed_noise).detach().cpu()
            vutils.save_image(shown, 'fake_%03d.png' % epoch, normalize=True)
    schedulerD.step()
    torch.save(netG.state_dict(), 'netG_epoch_%d.pth' % epoch)
