"""
Knowledge distillation: an ensemble of two frozen teachers and one small student.

The teachers are random-feature networks whose last layer is solved by least squares, so no teacher checkpoint is needed.
"""
import argparse
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset


def get_args():
    p = argparse.ArgumentParser()
    p.add_argument("-T", "--temperature", default=4.0, type=float)
    p.add_argument("-a", "--alpha", default=0.7, type=float, help="weight of the soft targets")
    p.add_argument("-e", "--epochs", default=6, type=int)
    p.add_argument("-b", "--batch", default=50, type=int)
    return p.parse_args()


class Teacher(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Dropout(0.2))
        self.readout = nn.Linear(width, 10, bias=False)

    @torch.no_grad()
    def solve(self, x, y):
        h = F.linear(x, self.features[0].weight, self.features[0].bias).relu()
        gram = h.T @ h + torch.eye(h.shape[1])
        target = 8 * F.one_hot(y, 10).float() - 0.8
        self.readout.weight.copy_(torch.linalg.solve(gram, h.T @ target).T)

    def forward(self, x):
        return self.readout(self.features(x))


class Student(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 10))

    def forward(self, x):
        return self.net(x)


def kd_loss(student_logits, teacher_logits, labels, T, alpha):
    soft = F.kl_div(F.log_softmax(student_logits / T, dim=1),
                    F.softmax(teacher_logits / T, dim=1), reduction="batchmean") * (T * T)
    return alpha * soft + (1 - alpha) * F.cross_entropy(student_logits, labels)


def accuracy(model, x, y):
    model.eval()
    with torch.no_grad():
        return (model(x).argmax(1) == y).float().mean().item()


def main():
    args = get_args()
    torch.manual_seed(99)
    x, y = load_digits(return_X_y=True)
    x, y = torch.tensor(x / 16).float(), torch.tensor(y)
    train_x, train_y, test_x, test_y = x[:1400], y[:1400], x[1400:], y[1400:]

    teachers = [Teacher(512), Teacher(1024)]
    for t in teachers:
        t.solve(train_x, train_y)
        print("teacher accuracy", accuracy(t, test_x, test_y))
        t.eval()

    student = Student()
    optimizer = torch.optim.Adam(student.parameters(), lr=3e-3)
    loader = DataLoader(TensorDataset(train_x, train_y), batch_size=args.batch, shuffle=True)
    for epoch in range(args.epochs):
        student.train()
        for inputs, labels in loader:
            with torch.no_grad():
                teacher_logits = torch.stack([t(inputs) for t in teachers]).mean(0)
            loss = kd_loss(student(inputs), teacher_logits, labels, args.temperature, args.alpha)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} last loss {loss.item():.6f} student accuracy {accuracy(student, test_x, test_y):.4f}")


main()
