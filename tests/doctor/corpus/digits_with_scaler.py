"""Digits with a small convolutional net, half precision the way it was done around 2020."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.cuda.amp import GradScaler, autocast
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

EPOCHS = 12
BATCH = 128

torch.manual_seed(7)
torch.backends.cudnn.benchmark = False  # finds H301
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

to_tensor = transforms.Compose([
    transforms.ToTensor(),
    transforms.Normalize((0.1307,), (0.3081,)),
])
train_set = datasets.MNIST("data", train=True, download=True, transform=to_tensor)
test_set = datasets.MNIST("data", train=False, transform=to_tensor)

train_loader = DataLoader(train_set, batch_size=BATCH, shuffle=True)  # finds H101 H102
test_loader = DataLoader(test_set, batch_size=4 * BATCH)


class DigitNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.drop = nn.Dropout(0.25)
        self.fc1 = nn.Linear(64 * 12 * 12, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        x = F.max_pool2d(x, 2)
        x = torch.flatten(x, 1)
        x = self.drop(F.relu(self.fc1(x)))
        return self.fc2(x)


model = DigitNet().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)  # finds H307
scheduler = torch.optim.lr_scheduler.OneCycleLR(
    optimizer, max_lr=5e-3, epochs=EPOCHS, steps_per_epoch=len(train_loader)
)
scaler = GradScaler()  # finds H408

for epoch in range(EPOCHS):
    model.train()
    running = torch.zeros((), device=device)
    correct = 0
    for i, (images, labels) in enumerate(train_loader):
        images = images.to(device, non_blocking=True)
        labels = labels.to(device, non_blocking=True)
        optimizer.zero_grad()
        with autocast():  # finds H408
            logits = model(images)
            loss = F.cross_entropy(logits, labels)
        scaler.scale(loss).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # the gradients are still scaled: finds H405
        scaler.step(optimizer)
        scaler.update()

        running += loss.detach()
        correct += (logits.argmax(1) == labels).sum().item()  # finds H201
        if i % 200 == 0:
            print(f"epoch {epoch} batch {i} loss {loss.item():.4f}")
    scheduler.step()  # counts batches, and is told of epochs: finds H403
    print(f"epoch {epoch}: loss {running.item() / len(train_loader):.4f} acc {correct / len(train_set):.4f}")

    model.eval()
    hits = 0
    with torch.no_grad():
        for images, labels in test_loader:
            images, labels = images.to(device), labels.to(device)
            with autocast():  # finds H408
                hits += (model(images).argmax(1) == labels).sum().item()
    print(f"epoch {epoch}: test accuracy {hits / len(test_set):.4f}")

torch.save(model.state_dict(), "digits.pt")
