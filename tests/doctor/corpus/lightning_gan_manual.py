"""A GAN on MNIST as a LightningModule that optimizes by hand."""

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets
from torchvision import transforms as T


class Generator(nn.Sequential):
    def __init__(self, latent):
        super().__init__(
            nn.ConvTranspose2d(latent, 128, 7, 1, 0, bias=False),
            nn.BatchNorm2d(128),
            nn.ReLU(True),
            nn.ConvTranspose2d(128, 64, 4, 2, 1),  # finds H417
            nn.BatchNorm2d(64),
            nn.ReLU(True),
            nn.ConvTranspose2d(64, 1, 4, 2, 1),
            nn.Tanh(),
        )


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 64, 4, 2, 1),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(64, 128, 4, 2, 1),
            nn.LeakyReLU(0.2, inplace=True),
        )
        self.score = nn.Linear(128 * 7 * 7, 1)

    def forward(self, x):
        return self.score(self.features(x).flatten(1))


class LitGAN(L.LightningModule):
    def __init__(self, latent: int = 64, lr: float = 2e-4):
        super().__init__()
        self.save_hyperparameters()
        self.automatic_optimization = False
        self.generator = Generator(latent)
        self.discriminator = Discriminator()
        self.criterion = nn.BCEWithLogitsLoss()
        self.g_history = []
        self.d_curve = []

    def training_step(self, batch, batch_idx):
        real, _ = batch
        opt_g, opt_d = self.optimizers()
        n = real.size(0)
        ones = torch.ones(n, 1, device=self.device)
        zeros = torch.zeros(n, 1, device=self.device)

        # discriminator
        z = torch.randn(n, self.hparams.latent, 1, 1).to(self.device)  # finds H203
        fake = self.generator(z)
        d_loss = self.criterion(self.discriminator(real), ones)
        d_loss = d_loss + self.criterion(self.discriminator(fake.detach()), zeros)
        opt_d.zero_grad()
        self.manual_backward(d_loss)
        opt_d.step()

        # generator
        verdict = torch.sigmoid(self.discriminator(fake))
        g_loss = self.criterion(verdict, ones)  # twice a sigmoid: finds H412
        self.manual_backward(g_loss)
        opt_g.step()  # nobody clears the generator: finds H401

        self.g_history.append(g_loss)  # finds H205
        self.d_curve.append(d_loss.detach().cpu().item())  # finds H201
        self.log_dict({"d_loss": d_loss, "g_loss": g_loss}, prog_bar=True)
        if self.global_step % 200 == 0:
            print("step", self.global_step, "generator", g_loss.item())

    def on_train_epoch_end(self):
        with torch.no_grad():
            z = torch.randn(16, self.hparams.latent, 1, 1, device=self.device)
            sample = self.generator(z).cpu().numpy()
        print("sample range", sample.min(), sample.max())
        print("generator mean", torch.stack(self.g_history).mean().item())
        self.g_history.clear()
        torch.cuda.empty_cache()

    def configure_optimizers(self):
        lr = self.hparams.lr
        opt_g = torch.optim.Adam(self.generator.parameters(), lr=lr, betas=(0.5, 0.999))  # finds H307
        opt_d = torch.optim.Adam(self.discriminator.parameters(), lr=lr, betas=(0.5, 0.999), fused=True)
        return [opt_g, opt_d], []


if __name__ == "__main__":
    torch.autograd.set_detect_anomaly(True)  # finds H304
    mnist = datasets.MNIST(".", train=True, download=True, transform=T.Compose([T.ToTensor(), T.Normalize(0.5, 0.5)]))
    workers = dict(num_workers=2, persistent_workers=True)
    train_loader = DataLoader(mnist, batch_size=128, pin_memory=True, **workers)  # finds H104
    trainer = L.Trainer(accelerator="gpu", devices=1, max_epochs=25)
    trainer.fit(LitGAN(), train_loader)
