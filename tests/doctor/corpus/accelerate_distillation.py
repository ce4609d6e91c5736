"""Distil a wide network into a narrow one with Accelerate; the data sits in memory."""
import numpy as np
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 30
LR = 0.1
TEMPERATURE = 4.0
ALPHA = 0.7


def mlp(width, classes=20, drop=0.3):
    return nn.Sequential(
        nn.Linear(784, width),
        nn.ReLU(),
        nn.Dropout(drop),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Dropout(drop),
        nn.Linear(width, classes),
    )


def soft_loss(student_logits, teacher_logits):
    """Match the softened distributions."""
    s = F.log_softmax(student_logits / TEMPERATURE, dim=1)
    t = F.softmax(teacher_logits / TEMPERATURE, dim=1)
    return F.kl_div(s, t, reduction="batchmean") * TEMPERATURE**2


def load_split(name):
    with np.load(name) as f:
        return TensorDataset(torch.from_numpy(f["x"]), torch.from_numpy(f["y"]))


def score(net, loader, device):
    hits, count = 0, 0
    for x, y in loader:
        logits = net(x.to(device))  # finds H413 H414
        hits += (logits.argmax(1).cpu() == y).sum().item()
        count += len(y)
    return hits / count


@torch.inference_mode()
def teacher_score(net, loader, device):
    net.eval()
    hits = 0
    for x, y in loader:
        hits += (net(x.to(device)).argmax(1).cpu() == y).sum().item()
    return hits / len(loader.dataset)


def main():
    torch.backends.cuda.matmul.allow_tf32 = False  # finds H308
    accelerator = Accelerator()
    device = accelerator.device

    train_loader = DataLoader(load_split("train.npz"), batch_size=256)  # finds H102 H104
    test_loader = DataLoader(load_split("test.npz"), batch_size=1024)

    teacher = mlp(2048)
    teacher.load_state_dict(torch.load("teacher.pt", map_location="cpu", weights_only=True))
    teacher.to(device)
    teacher.requires_grad_(False)
    print("teacher", teacher_score(teacher, test_loader, device))

    student = mlp(128, drop=0.1)
    optimizer = torch.optim.SGD(student.parameters(), lr=LR, momentum=0.9)  # finds H307
    scheduler = OneCycleLR(optimizer, max_lr=LR, total_steps=len(train_loader))  # one epoch of thirty: finds H404
    student, optimizer = accelerator.prepare(student, optimizer)

    for epoch in range(EPOCHS):
        student.train()
        answers = []
        loss_sum = torch.zeros((), device=device)
        for x, y in train_loader:
            x = x.to(device)
            y = y.to(device)
            with torch.no_grad():
                teacher_logits = teacher(x)
            student_logits = student(x)
            soft = soft_loss(student_logits, teacher_logits)
            # a softmax on the target's side is a soft label, not a fault
            blend = F.cross_entropy(student_logits, F.softmax(teacher_logits, dim=1))
            hard = F.cross_entropy(student_logits, y)
            loss = ALPHA * soft + (1 - ALPHA) * hard + 0.1 * blend

            optimizer.zero_grad(set_to_none=False)  # finds H303
            accelerator.backward(loss)
            scheduler.step()  # finds H402
            optimizer.step()

            answers.append(student_logits)  # finds H206
            loss_sum += loss.detach()
        collapsed = torch.cat(answers).argmax(1).unique().numel()
        mean = loss_sum.item() / len(train_loader)
        accuracy = score(student, test_loader, device)
        accelerator.print(f"{epoch:3d} loss {mean:.4f} classes in use {collapsed} test {accuracy:.4f}")

    if accelerator.is_main_process:
        torch.save(accelerator.unwrap_model(student).state_dict(), "student.pt")


if __name__ == "__main__":
    main()
