"""Fine-tune a sentiment model with the Hugging Face Trainer and look at its mistakes afterwards."""

import argparse

import numpy as np
import torch
from datasets import load_dataset
from torch.utils.data import DataLoader
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
)

torch.set_float32_matmul_precision("highest")  # finds H308


def compute_metrics(prediction):
    logits, labels = prediction
    guesses = np.argmax(logits, axis=-1)
    return {"accuracy": float((guesses == labels).mean())}


def label_prior(dataset):
    """Log prior of the labels, to start the bias of the classifier from."""
    labels = np.array(dataset["label"])
    prior = np.bincount(labels) / len(labels)
    return torch.tensor(np.log(prior))  # finds H202


def label_shares(dataset):
    counts = [0, 0]
    for label in dataset["label"]:
        counts[label] += 1
    return torch.tensor(counts) / sum(counts)


def mistakes(model, dataset, collate, device):
    loader = DataLoader(dataset, batch_size=64, collate_fn=collate)
    model.eval()
    wrong = []
    for number, batch in enumerate(loader):
        batch = {k: v.to(device) for k, v in batch.items()}
        logits = model(**batch).logits  # finds H413
        missed = (logits.argmax(-1) != batch["labels"]).nonzero().flatten().tolist()
        wrong += [number * 64 + m for m in missed]
    return wrong


@torch.no_grad()
def confidences(model, dataset, collate, device):
    model.eval()
    found = []
    for batch in DataLoader(dataset, batch_size=64, collate_fn=collate, num_workers=2):
        batch = batch.to(device)
        found.append(model(**batch).logits.softmax(-1).max(-1).values)
    return torch.cat(found).cpu().numpy()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--checkpoint", default="roberta-base")
    ap.add_argument("--head", help="a saved classifier head to start from")
    ap.add_argument("--deterministic", action="store_true")
    ap.add_argument("--debug", action="store_true")
    args = ap.parse_args()

    if args.deterministic:
        torch.use_deterministic_algorithms(True)
    if args.debug:
        torch.autograd.set_detect_anomaly(True)

    tokenizer = AutoTokenizer.from_pretrained(args.checkpoint)
    raw = load_dataset("glue", "sst2")
    encoded = raw.map(lambda rows: tokenizer(rows["sentence"], truncation=True), batched=True)
    encoded = encoded.remove_columns(["sentence", "idx"])
    model = AutoModelForSequenceClassification.from_pretrained(args.checkpoint, num_labels=2)
    if args.head:
        model.classifier.load_state_dict(torch.load(args.head, map_location="cpu"))  # finds H416
    else:
        model.classifier.out_proj.bias.data.copy_(label_prior(raw["train"]))
    print("shares", label_shares(raw["train"]).tolist())

    collate = DataCollatorWithPadding(tokenizer)
    training = TrainingArguments(
        output_dir="sst2",
        num_train_epochs=3,
        per_device_train_batch_size=32,
        gradient_accumulation_steps=2,
        learning_rate=2e-5,
        eval_strategy="epoch",
        save_strategy="epoch",
        optim="adamw_torch_fused",
        dataloader_num_workers=4,
        load_best_model_at_end=True,
        bf16=torch.cuda.is_available(),
    )
    trainer = Trainer(
        model=model,
        args=training,
        train_dataset=encoded["train"],
        eval_dataset=encoded["validation"],
        data_collator=collate,
        compute_metrics=compute_metrics,
    )
    trainer.train()

    device = trainer.args.device
    print("missed", mistakes(model, encoded["validation"], collate, device)[:20])
    print("mean confidence", confidences(model, encoded["validation"], collate, device).mean())


if __name__ == "__main__":
    main()
