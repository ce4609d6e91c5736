"""My first network: ten kinds of pictures (homework 3)."""
import torch
import torch.nn as nn
import torch.nn.functional as F
import torchvision
import torchvision.transforms as transforms
from torch.utils.data import DataLoader

device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
print(device)

tf = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))])
trainset = torchvision.datasets.CIFAR10('./data', train=True, download=True, transform=tf)
testset = torchvision.datasets.CIFAR10('./data', train=False, download=True, transform=tf)
trainloader = DataLoader(trainset, batch_size=32)  # finds H101 H102 H104
testloader = DataLoader(testset, batch_size=32)


class Net(nn.Module):
    def __init__(self):
        super(Net, self).__init__()
        self.conv1 = nn.Conv2d(3, 16, 3)
        self.conv2 = nn.Conv2d(16, 32, 3)  # finds H417
        self.bn = nn.BatchNorm2d(32)
        self.drop = nn.Dropout(0.5)
        self.fc1 = nn.Linear(32 * 6 * 6, 100)
        self.fc2 = nn.Linear(100, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.bn(self.conv2(x))), 2)
        x = x.view(-1, 32 * 6 * 6)
        x = self.drop(F.relu(self.fc1(x)))
        return self.fc2(x)


model = Net().to(device)
criterion = nn.CrossEntropyLoss()
epochs = 10
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)  # finds H307
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * len(trainloader))

# TRAIN
for epoch in range(epochs):
    total_loss = 0
    correct = 0
    n = 0
    for images, labels in trainloader:
        images = images.to(device)
        labels = labels.to(device)
        out = model(images)
        prob = F.softmax(out, dim=1)
        loss = criterion(prob, labels)  # finds H412
        loss.backward()
        scheduler.step()  # finds H402
        optimizer.step()  # finds H401
        total_loss += loss  # finds H205
        pred = prob.argmax(dim=1)
        for i in range(len(pred)):  # finds H207
            correct = correct + (pred[i] == labels[i])
        n = n + labels.size(0)
        print('loss', loss.item())  # finds H201
        torch.cuda.empty_cache()  # finds H302
    print('epoch', epoch, 'loss', total_loss / len(trainloader), 'acc', correct / n)

print('finished!!')
torch.save(model.state_dict(), 'net.pth')

# TEST (load it again to be sure)
model2 = Net().to(device)
model2.load_state_dict(torch.load('net.pth'))  # finds H416
good = 0
bad = 0
for images, labels in testloader:
    out = model2(images.to(device))  # finds H413 H414
    pred = out.argmax(dim=1).cpu()
    good += (pred == labels).sum().item()
    bad += (pred != labels).sum().item()
print('accuracy %', 100 * good / (good + bad))
