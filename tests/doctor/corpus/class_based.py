from torch import autograd, cuda, nn
from torch.nn import parallel


class Trainer:
    def __init__(self, model, optimizer, loader, debug=False):
        if debug:
            autograd.set_detect_anomaly(True)
        self.model = parallel.DataParallel(model.cuda())  # finds H501
        self.optimizer = optimizer
        self.loader = loader
        self.total = 0

    def compute(self, batch):
        return nn.functional.mse_loss(self.model(batch["x"].cuda()), batch["y"].cuda())

    def update(self, batch):
        self.optimizer.zero_grad(False)  # finds H303
        loss = self.compute(batch)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def fit(self, epochs):
        for _ in range(epochs):
            for batch in self.loader:
                self.total += self.update(batch)
                cuda.empty_cache()  # finds H302
            cuda.empty_cache()
            print(self.total.item())
