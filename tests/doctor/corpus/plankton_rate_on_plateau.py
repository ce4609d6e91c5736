"""Plankton from small grey images kept in one file; the rate falls when the loss rests."""
import sys

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, TensorDataset, random_split

torch.backends.cudnn.deterministic = True  # finds H305
torch.backends.cudnn.benchmark = False
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

NB_EPOCHS = 35
GROUP = 4


class PlanktonNet(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, 5, padding=2),
            nn.ReLU(),
            nn.BatchNorm2d(32),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
            nn.Dropout2d(0.2),
            nn.AdaptiveMaxPool2d(4),
        )
        self.classifier = nn.Linear(64 * 16, classes)

    def forward(self, x):
        return self.classifier(self.features(x).flatten(1))


def train(model, loader, optimizer, device):
    model.train()
    everything = []
    labels = []
    mean = torch.zeros((), device=device)
    for i, (x, y) in enumerate(loader):
        x = x.to(device)
        y = y.to(device)
        probs = F.softmax(model(x), dim=1)
        loss = F.nll_loss(probs, y)  # the logarithm is missing: finds H412
        with torch.autograd.detect_anomaly():  # finds H304
            loss.backward()  # finds H409
        everything.append(probs)  # finds H206
        labels.append(y)
        mean += loss.detach() / len(loader)
        if (i + 1) % GROUP == 0:
            optimizer.step()
            optimizer.zero_grad()
        torch.cuda.empty_cache()  # finds H302
    if (i + 1) % GROUP != 0:
        optimizer.step()
        optimizer.zero_grad()
    hits = (torch.cat(everything).argmax(1) == torch.cat(labels)).float().mean()
    return mean.item(), hits.item()


def evaluate(model, loader, device):
    right = 0
    for x, y in loader:
        scores = model(x.to(device))  # finds H413 H414
        right += (scores.argmax(1) == y.to(device)).sum().item()
    return right / len(loader.dataset)


def confusion(model, loader, classes, device):
    model.eval()
    table = np.zeros((classes, classes), dtype=np.int64)
    for x, y in loader:
        with torch.no_grad():
            guess = model(x.to(device)).argmax(1).cpu().numpy()
        np.add.at(table, (y.numpy(), guess), 1)
    return table


def main(path):
    stored = np.load(path)
    images = torch.from_numpy(stored["images"]).float().unsqueeze(1) / 255
    kinds = torch.from_numpy(stored["kinds"]).long()
    classes = int(kinds.max()) + 1
    train_set, test_set = random_split(TensorDataset(images, kinds), [0.8, 0.2])

    train_loader = DataLoader(train_set, batch_size=64)  # finds H102 H104
    test_loader = DataLoader(test_set, batch_size=256)
    model = PlanktonNet(classes).to(device)
    if len(sys.argv) > 2:
        model.load_state_dict(torch.load(sys.argv[2], map_location=device))  # finds H416

    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    scheduler = ReduceLROnPlateau(optimizer, factor=0.5, patience=3)
    for epoch in range(NB_EPOCHS):
        loss, hits = train(model, train_loader, optimizer, device)
        accuracy = evaluate(model, test_loader, device)
        scheduler.step()  # it does not learn what rests: finds H403
        print(f"{epoch:2d} loss {loss:.4f} train {hits:.3f} test {accuracy:.3f}")

    print(confusion(model, test_loader, classes, device))
    torch.save(model.state_dict(), "plankton.pt")


if __name__ == "__main__":
    main(sys.argv[1])
