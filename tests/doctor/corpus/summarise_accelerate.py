"""Fine-tune a small sequence-to-sequence model on radiology reports with Accelerate."""
import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from datasets import load_dataset
from torch.optim import AdamW
from torch.utils.data import DataLoader
from tqdm import tqdm
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, DataCollatorForSeq2Seq
from transformers import get_linear_schedule_with_warmup


def options():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--model", default="google/flan-t5-small")
    p.add_argument("--csv", default="reports.csv")
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--accumulate", type=int, default=4)
    p.add_argument("--loaders", type=int, default=4)
    return p.parse_args()


def prepare_data(opts, tok, collate):
    raw = load_dataset("csv", data_files=opts.csv)["train"].train_test_split(0.05, seed=0)

    def encode(rows):
        enc = tok(rows["findings"], truncation=True, max_length=512)
        enc["labels"] = tok(text_target=rows["impression"], truncation=True, max_length=96)["input_ids"]
        return enc

    ready = raw.map(encode, batched=True, remove_columns=raw["train"].column_names)
    train = DataLoader(ready["train"], batch_size=opts.batch, collate_fn=collate, shuffle=True,  # finds H103
                       num_workers=opts.loaders, pin_memory=True)
    test = DataLoader(ready["test"], batch_size=2 * opts.batch, collate_fn=collate, pin_memory=True)
    return train, test


def test_loss(model, loader, accelerator):
    model.eval()
    parts = []
    for batch in loader:
        out = model(**batch)  # finds H413
        parts.append(accelerator.gather_for_metrics(out.loss.detach().repeat(2)))
    return torch.cat(parts).mean().item()


def main():
    opts = options()
    set_seed(5)
    torch.use_deterministic_algorithms(True)  # finds H305
    accelerator = Accelerator(gradient_accumulation_steps=opts.accumulate, mixed_precision="bf16")
    tok = AutoTokenizer.from_pretrained(opts.model)
    model = AutoModelForSeq2SeqLM.from_pretrained(opts.model).to(accelerator.device)
    train, test = prepare_data(opts, tok, DataCollatorForSeq2Seq(tok, model=model))

    plain = [p for n, p in model.named_parameters() if "norm" in n]
    rest = [p for n, p in model.named_parameters() if "norm" not in n]
    optimizer = AdamW([{"params": plain, "weight_decay": 0.0}, {"params": rest}], lr=2e-4)  # finds H307
    total = opts.epochs * len(train) // opts.accumulate
    schedule = get_linear_schedule_with_warmup(optimizer, total // 20, total)
    model, optimizer, train, test, schedule = accelerator.prepare(model, optimizer, train, test, schedule)

    seen = 0
    for epoch in range(opts.epochs):
        model.train()
        bar = tqdm(train, disable=not accelerator.is_local_main_process)
        for batch in bar:
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            seen += batch["input_ids"].shape[0]
            bar.set_postfix(seen=seen, lr=schedule.get_last_lr()[0])
            bar.set_description(f"loss {loss.item():.3f}")  # finds H201
        accelerator.print(epoch, test_loss(model, test, accelerator))

    accelerator.wait_for_everyone()
    bare = accelerator.unwrap_model(model)
    bare.save_pretrained("report_model", save_function=accelerator.save)


if __name__ == "__main__":
    main()
