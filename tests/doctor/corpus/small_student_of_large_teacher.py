"""A small student learns CIFAR-100 from a large teacher that was trained before."""
import torch
import torch.nn as nn
import torch.nn.functional as F
import torchvision
import torchvision.transforms as T
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader

EPOCHS = 60
ALPHA = 0.7
BATCH = 256

torch.backends.cudnn.allow_tf32 = False  # finds H308
torch.backends.cudnn.benchmark = False  # finds H301
device = "cuda"
temperature = torch.tensor(4.0).to(device)  # finds H203
class_weights = torch.ones(100, dtype=torch.float32).cuda()  # finds H203

loader_args = {"batch_size": BATCH, "num_workers": 8, "pin_memory": True, "persistent_workers": True}
as_tensor = T.Compose([T.ToTensor(), T.Normalize((0.507, 0.487, 0.441), (0.267, 0.256, 0.276))])
moved = T.Compose([T.RandomCrop(32, 4), T.RandomHorizontalFlip(), as_tensor])
train_loader = DataLoader(
    torchvision.datasets.CIFAR100("data", train=True, transform=moved, download=True), shuffle=True, **loader_args
)
test_loader = DataLoader(torchvision.datasets.CIFAR100("data", train=False, transform=as_tensor), **loader_args)


class Student(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(64, 128, 3, padding=1, bias=False), nn.BatchNorm2d(128), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.1), nn.Linear(128, 100),
        )

    def forward(self, x):
        return self.layers(x)


def distillation_loss(student_logits, teacher_logits, labels):
    """The teacher's softmax is the target, the student's logits stay logits."""
    target = F.softmax(teacher_logits / temperature, dim=1)
    soft = F.cross_entropy(student_logits / temperature, target) * temperature ** 2
    hard = F.cross_entropy(student_logits, labels, weight=class_weights)
    return ALPHA * soft + (1 - ALPHA) * hard


def evaluate(model):
    """To be called under no_grad, with the model in the right mode."""
    right = 0
    for images, labels in test_loader:
        right += (model(images.to(device)).argmax(1) == labels.to(device)).sum().item()
    return right / len(test_loader.dataset)


teacher = torchvision.models.resnet50(num_classes=100).to(device)
teacher.load_state_dict(torch.load("teacher.pt", map_location=device))  # finds H416
teacher.eval()
for p in teacher.parameters():
    p.requires_grad_(False)

student = Student().to(device)
optimizer = torch.optim.SGD(  # finds H307
    student.parameters(),
    lr=0.05,
    momentum=0.9,
    weight_decay=5e-4,
)
scheduler = OneCycleLR(  # made for a hundred epochs, of which sixty come: finds H404
    optimizer,
    max_lr=0.2,
    epochs=100,
    steps_per_epoch=len(train_loader),
)
scaler = torch.amp.GradScaler()

student.train()
best = 0.0
for epoch in range(EPOCHS):
    seen = torch.zeros((), device=device)
    for images, labels in train_loader:
        images = images.to(device, non_blocking=True, memory_format=torch.channels_last)
        labels = labels.to(device, non_blocking=True)
        with torch.no_grad():
            teacher_logits = teacher(images)
        optimizer.zero_grad(set_to_none=True)
        with torch.amp.autocast("cuda", dtype=torch.float16):
            student_logits = student(images)
            loss = distillation_loss(student_logits, teacher_logits, labels)
            scaler.scale(loss).backward()  # finds H406
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(student.parameters(), 5.0)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        torch.cuda.synchronize()  # finds H306
        seen += loss.detach()

    student.eval()  # finds H415
    with torch.no_grad():
        accuracy = evaluate(student)
    print(f"epoch {epoch}: loss {seen.item() / len(train_loader):.3f} norm {norm.item():.2f} acc {accuracy:.2%}")
    if accuracy > best:
        best = accuracy
        torch.save(student.state_dict(), "student.pt")

student.eval()
student.load_state_dict(torch.load("student.pt", weights_only=True))
with torch.no_grad():
    print("best student once more:", evaluate(student))
