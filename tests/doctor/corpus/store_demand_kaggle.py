"""Five-fold tabular network for weekly store demand, written for a competition."""
import gc
import os
import random

import numpy as np
import pandas as pd
import torch
import torch.nn as nn
from sklearn.model_selection import KFold
from torch.utils.data import DataLoader, TensorDataset


class CFG:
    seed = 7
    n_fold = 5
    epochs = 15
    bs = 1024
    lr = 2e-3
    device = "cuda"
    path = "../input/weekly-demand/"


def seed_everything(seed):
    random.seed(seed)
    os.environ["PYTHONHASHSEED"] = str(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.backends.cudnn.deterministic = True  # finds H305
    torch.backends.cudnn.benchmark = False


def get_model(n_in):
    return nn.Sequential(
        nn.Linear(n_in, 512),  # finds H417
        nn.BatchNorm1d(512),
        nn.SiLU(),
        nn.Dropout(0.25),
        nn.Linear(512, 128),
        nn.SiLU(),
        nn.BatchNorm1d(128),
        nn.Linear(128, 1),
    )


def train_fn(dl, model, opt, loss_fn):
    model.train()
    hist = []
    for xb, yb in dl:
        xb, yb = xb.to(CFG.device), yb.to(CFG.device)  # finds H204
        opt.zero_grad(set_to_none=False)  # finds H303
        loss = loss_fn(model(xb).squeeze(1), yb)
        loss.backward()
        opt.step()
        hist.append(loss.item())  # finds H201
    return np.mean(hist)


def valid_fn(dl, model):
    model.eval()
    out = []
    with torch.inference_mode():
        for xb, _ in dl:
            out.append(model(xb.to(CFG.device)).squeeze(1).cpu().numpy())
    return np.concatenate(out)


seed_everything(CFG.seed)
df = pd.read_parquet(CFG.path + "train.parquet")
feats = [c for c in df.columns if c not in ("id", "sales", "week")]
X = df[feats].fillna(-1).to_numpy(dtype=np.float32)
y = np.log1p(df["sales"].to_numpy(dtype=np.float32))
oof = np.zeros(len(df), dtype=np.float32)

for fold, (tr, va) in enumerate(KFold(CFG.n_fold, shuffle=True, random_state=CFG.seed).split(X)):
    x_tr = torch.tensor(X[tr])  # finds H202
    y_tr = torch.from_numpy(y[tr])
    ds_tr = TensorDataset(x_tr, y_tr)
    ds_va = TensorDataset(torch.from_numpy(X[va]), torch.from_numpy(y[va]))
    dl_tr = DataLoader(ds_tr, CFG.bs, shuffle=True, num_workers=2, pin_memory=True)  # finds H103
    dl_va = DataLoader(ds_va, CFG.bs * 4)

    model = get_model(len(feats)).to(CFG.device)
    opt = torch.optim.AdamW(model.parameters(), lr=CFG.lr, weight_decay=1e-4)  # finds H307
    sch = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=CFG.lr, epochs=CFG.epochs, steps_per_epoch=len(dl_tr))
    loss_fn = nn.HuberLoss()
    best = 1e9
    for ep in range(CFG.epochs):
        tr_loss = train_fn(dl_tr, model, opt, loss_fn)
        pred = valid_fn(dl_va, model)
        rmse = float(np.sqrt(np.mean((pred - y[va]) ** 2)))
        sch.step()  # finds H403
        print(f"fold {fold} ep {ep} train {tr_loss:.4f} rmsle {rmse:.4f}")
        if rmse < best:
            best = rmse
            oof[va] = pred
            torch.save(model.state_dict(), f"fold{fold}.pth")
    del model, opt, dl_tr, dl_va
    gc.collect()
    torch.cuda.empty_cache()

print("cv", float(np.sqrt(np.mean((oof - y) ** 2))))

test = pd.read_parquet(CFG.path + "test.parquet")
xt = torch.from_numpy(test[feats].fillna(-1).to_numpy(dtype=np.float32)).to(CFG.device)
total = 0
for fold in range(CFG.n_fold):
    model = get_model(len(feats)).to(CFG.device)
    model.load_state_dict(torch.load(f"fold{fold}.pth"))  # finds H416
    model.eval()
    with torch.no_grad():
        total = total + model(xt).squeeze(1)
sub = pd.DataFrame({"id": test["id"], "sales": np.expm1((total / CFG.n_fold).cpu().numpy())})
sub.to_csv("submission.csv", index=False)
