"""Classify support tickets with a Trainer subclass: class weights, own sampler, own optimizer."""
import json
import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments

LABELS = ["billing", "outage", "question", "abuse"]
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def fix_seeds(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.backends.cudnn.deterministic = True  # finds H305
    torch.backends.cudnn.benchmark = False


class Tickets(Dataset):
    """All tickets, encoded once when it is made."""

    def __init__(self, path, tokenizer):
        with open(path) as lines:
            rows = [json.loads(line) for line in lines]
        self.labels = [LABELS.index(row["label"]) for row in rows]
        self.encoded = tokenizer([row["text"] for row in rows], truncation=True, padding=True, return_tensors="pt")

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        item = {name: values[i] for name, values in self.encoded.items()}
        item["labels"] = self.labels[i]
        return item


class WeightedTrainer(Trainer):
    def __init__(self, *args, class_weights=(1.0, 2.0, 1.0, 8.0), **kwargs):
        super().__init__(*args, **kwargs)
        self.class_weights = list(class_weights)

    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        weight = torch.tensor(self.class_weights).to(labels.device)  # finds H203
        probabilities = torch.softmax(outputs.logits, dim=-1)
        loss_fn = nn.CrossEntropyLoss(weight=weight)
        loss = loss_fn(probabilities, labels)  # finds H412
        return (loss, outputs) if return_outputs else loss

    def create_optimizer(self):
        decay = [p for n, p in self.model.named_parameters() if p.dim() > 1]
        rest = [p for n, p in self.model.named_parameters() if p.dim() <= 1]
        groups = [{"params": decay, "weight_decay": 0.01}, {"params": rest, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=self.args.learning_rate, fused=True)
        return self.optimizer

    def get_train_dataloader(self):
        labels = np.asarray(self.train_dataset.labels)
        counts = np.bincount(labels, minlength=len(LABELS)).clip(1)
        per_sample = (1.0 / counts)[labels]
        pick = WeightedRandomSampler(torch.tensor(per_sample), len(labels))  # finds H202
        loader = DataLoader(
            self.train_dataset,
            batch_size=self.args.train_batch_size,
            sampler=pick,
            collate_fn=self.data_collator,
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory,
        )
        return self.accelerator.prepare(loader)


@torch.no_grad()
def confusion(model, dataset):
    """Rows: the truth; columns: the answers."""
    model.eval()
    table = torch.zeros(len(LABELS), len(LABELS), device=DEVICE)
    for batch in DataLoader(dataset, batch_size=128):
        truth = batch.pop("labels").to(DEVICE)
        answer = model(**{k: v.to(DEVICE) for k, v in batch.items()}).logits.argmax(-1)
        table.index_put_((truth, answer), torch.ones_like(truth, dtype=table.dtype), accumulate=True)
    return table.cpu().numpy()


def main():
    fix_seeds(13)
    name = "bert-base-uncased"
    tokenizer = AutoTokenizer.from_pretrained(name)
    model = AutoModelForSequenceClassification.from_pretrained(name, num_labels=len(LABELS)).to(DEVICE)
    train_set, held_out = Tickets("train.jsonl", tokenizer), Tickets("dev.jsonl", tokenizer)
    args = TrainingArguments("tickets", num_train_epochs=4, learning_rate=5e-5, report_to="none", seed=13)
    trainer = WeightedTrainer(model=model, args=args, train_dataset=train_set, eval_dataset=held_out)
    trainer.train()
    trainer.save_model("tickets/final")
    print(confusion(model, held_out))


if __name__ == "__main__":
    main()
