import torch
from sklearn.datasets import load_digits
from torch import nn, optim
from torch.nn import functional as F

torch.manual_seed(1)
device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")

images = torch.tensor(load_digits().data, dtype=torch.float32) / 16
train_loader = torch.utils.data.DataLoader(images[:1500], batch_size=128, shuffle=True)
test_loader = torch.utils.data.DataLoader(images[1500:], batch_size=128, shuffle=False)


class VAE(nn.Module):
    def __init__(self):
        super(VAE, self).__init__()
        self.fc1 = nn.Linear(64, 200)
        self.fc21 = nn.Linear(200, 8)
        self.fc22 = nn.Linear(200, 8)
        self.fc3 = nn.Linear(8, 200)
        self.fc4 = nn.Linear(200, 64)

    def encode(self, x):
        h1 = F.relu(self.fc1(x))
        return self.fc21(h1), self.fc22(h1)

    def reparameterize(self, mu, logvar):
        std = torch.exp(0.5*logvar)
        eps = torch.randn_like(std)
        return mu + eps*std

    def decode(self, z):
        h3 = F.relu(self.fc3(z))
        return torch.sigmoid(self.fc4(h3))

    def forward(self, x):
        mu, logvar = self.encode(x.view(-1, 64))
        z = self.reparameterize(mu, logvar)
        return self.decode(z), mu, logvar


model = VAE().to(device)
optimizer = optim.Adam(model.parameters(), lr=1e-3)


# Reconstruction + KL divergence losses summed over all elements and batch
def loss_function(recon_x, x, mu, logvar):
    BCE = F.binary_cross_entropy(recon_x, x.view(-1, 64), reduction='sum')
    KLD = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return BCE + KLD


def train(epoch):
    model.train()
    train_loss = 0
    for batch_idx, data in enumerate(train_loader):
        data = data.to(device)
        optimizer.zero_grad()
        recon_batch, mu, logvar = model(data)
        loss = loss_function(recon_batch, data, mu, logvar)
        loss.backward()
        train_loss += loss.item()
        optimizer.step()
    print('====> Epoch: {} Average loss: {:.4f}'.format(epoch, train_loss / len(train_loader.dataset)))


def test(epoch):
    model.eval()
    test_loss = 0
    with torch.no_grad():
        for data in test_loader:
            data = data.to(device)
            recon_batch, mu, logvar = model(data)
            test_loss += loss_function(recon_batch, data, mu, logvar).item()
    print('====> Test set loss: {:.4f}'.format(test_loss / len(test_loader.dataset)))


if __name__ == "__main__":
    for epoch in range(1, 16):
        train(epoch)
        test(epoch)
        with torch.no_grad():
            sample = model.decode(torch.randn(4, 8).to(device)).cpu()  # not saved anywhere for now
