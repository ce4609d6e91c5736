"""Circles, squares, crosses. Follows the transfer learning tutorial, without the transfer."""
import copy
import time

import numpy as np
import torch
import torch.nn as nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(42)
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")


class ShapesDataset(Dataset):
    classes = ("circle", "square", "cross")

    def __init__(self, n_samples, seed, transform=None):
        self.n_samples = n_samples
        self.seed = seed
        self.transform = transform

    def __len__(self):
        return self.n_samples

    def __getitem__(self, idx):
        rng = np.random.RandomState(self.seed + idx)
        label = idx % 3
        img = np.zeros((24, 24), dtype=np.float32)
        cx, cy, r = rng.randint(8, 16), rng.randint(8, 16), rng.randint(4, 8)
        for i in range(24):
            for j in range(24):
                dx, dy = abs(i - cx), abs(j - cy)
                if label == 0 and dx * dx + dy * dy <= r * r:
                    img[i, j] = 1
                elif label == 1 and max(dx, dy) <= r:
                    img[i, j] = 1
                elif label == 2 and min(dx, dy) <= 1 and max(dx, dy) <= r:
                    img[i, j] = 1
        img += rng.randn(24, 24).astype(np.float32) * 0.3
        if self.transform:
            img = self.transform(img)
        return torch.from_numpy(img)[None], label


def normalize(img):
    return (img - img.mean()) / img.std()


image_datasets = {
    "train": ShapesDataset(480, 0, normalize),
    "val": ShapesDataset(120, 100000, normalize),
}
dataloaders = {x: DataLoader(image_datasets[x], batch_size=16, shuffle=(x == "train"), num_workers=0)
               for x in ["train", "val"]}
dataset_sizes = {x: len(image_datasets[x]) for x in ["train", "val"]}


def train_model(model, criterion, optimizer, scheduler, num_epochs=25):
    since = time.time()
    best_model_wts = copy.deepcopy(model.state_dict())
    best_acc = 0.0

    for epoch in range(num_epochs):
        print("Epoch {}/{}".format(epoch, num_epochs - 1))
        for phase in ["train", "val"]:
            if phase == "train":
                model.train()
            else:
                model.eval()
            running_loss, running_corrects = 0.0, 0
            for inputs, labels in dataloaders[phase]:
                inputs = inputs.to(device)
                labels = labels.to(device)
                optimizer.zero_grad()
                with torch.set_grad_enabled(phase == "train"):
                    outputs = model(inputs)
                    _, preds = torch.max(outputs, 1)
                    loss = criterion(outputs, labels)
                    if phase == "train":
                        loss.backward()
                        optimizer.step()
                running_loss += loss.item() * inputs.size(0)
                running_corrects += torch.sum(preds == labels.data)
            if phase == "train":
                scheduler.step()
            epoch_loss = running_loss / dataset_sizes[phase]
            epoch_acc = running_corrects.double() / dataset_sizes[phase]
            print("{} Loss: {:.4f} Acc: {:.4f}".format(phase, epoch_loss, epoch_acc))
            if phase == "val" and epoch_acc > best_acc:
                best_acc = epoch_acc
                best_model_wts = copy.deepcopy(model.state_dict())
        print()

    print("Training complete in {:.0f}s".format(time.time() - since))
    print("Best val Acc: {:4f}".format(best_acc))
    model.load_state_dict(best_model_wts)
    return model


net = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Linear(32 * 6 * 6, len(ShapesDataset.classes)),
).to(device)
optimizer_ft = torch.optim.SGD(net.parameters(), lr=0.005, momentum=0.9)
exp_lr_scheduler = lr_scheduler.StepLR(optimizer_ft, step_size=2, gamma=0.1)
net = train_model(net, nn.CrossEntropyLoss(), optimizer_ft, exp_lr_scheduler, num_epochs=4)
