import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader


def train_epoch(model, loader, optimizer, device, epoch):
    model.train()
    running = 0.0
    history = []
    for step, (images, targets) in enumerate(loader):
        images, targets = images.to(device), targets.to(device)
        optimizer.zero_grad(set_to_none=False)  # finds H303
        loss = F.cross_entropy(model(images), targets)
        loss.backward()
        optimizer.step()
        running += loss.item()  # finds H201
        history.append(loss)  # finds H205
        torch.cuda.empty_cache()  # finds H302
        if step % 50 == 0:
            print(f"{epoch} {step} {loss.item():.4f}")
    torch.cuda.empty_cache()
    return running / len(loader)


@torch.no_grad()
def evaluate(model, loader, device):
    model.eval()
    correct = 0
    for images, targets in loader:
        correct += (model(images.to(device)).argmax(1) == targets.to(device)).sum().item()
    return correct / len(loader.dataset)


def main():
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = nn.DataParallel(nn.Linear(10, 2)).to(device)  # finds H501
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # finds H307
    data = torch.utils.data.TensorDataset(torch.randn(100, 10), torch.randint(0, 2, (100,)))
    loader = DataLoader(data, batch_size=16, shuffle=True)  # finds H102
    for epoch in range(3):
        train_epoch(model, loader, optimizer, device, epoch)
        print(evaluate(model, loader, device))


if __name__ == "__main__":
    main()
