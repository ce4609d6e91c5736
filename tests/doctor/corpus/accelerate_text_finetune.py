"""Fine-tune a text classifier on IMDB with a hand-written Accelerate loop."""

import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from datasets import load_dataset
from torch.utils.data import DataLoader
from tqdm.auto import tqdm
from transformers import AutoModelForSequenceClassification, AutoTokenizer, get_linear_schedule_with_warmup


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="distilbert-base-uncased")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--lr", type=float, default=3e-5)
    parser.add_argument("--accumulate", type=int, default=4)
    return parser.parse_args()


def build_loaders(tokenizer, batch_size):
    def encode(rows):
        out = tokenizer(rows["text"], truncation=True, padding="max_length", max_length=256, return_tensors="pt")
        out["labels"] = torch.tensor(rows["label"])
        return out

    train_set = load_dataset("imdb", split="train")
    test_set = load_dataset("imdb", split="test")
    train_set.set_transform(encode)
    test_set.set_transform(encode)
    train_loader = DataLoader(train_set, batch_size=batch_size, shuffle=True, pin_memory=True)  # finds H101
    test_loader = DataLoader(test_set, batch_size=2 * batch_size, pin_memory=True)
    return train_loader, test_loader


def main():
    args = parse()
    set_seed(7)
    torch.use_deterministic_algorithms(True)  # finds H305
    accelerator = Accelerator(gradient_accumulation_steps=args.accumulate, mixed_precision="bf16")
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForSequenceClassification.from_pretrained(args.model, num_labels=2)
    train_loader, test_loader = build_loaders(tokenizer, args.batch)

    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)  # finds H307
    scheduler = get_linear_schedule_with_warmup(optimizer, 200, args.epochs * len(train_loader))
    model, optimizer, train_loader, test_loader, scheduler = accelerator.prepare(
        model, optimizer, train_loader, test_loader, scheduler
    )
    class_weights = torch.tensor([1.0, 1.2], device=accelerator.device)

    model.train()
    for epoch in range(args.epochs):
        epoch_loss = 0.0
        smooth = torch.zeros((), device=accelerator.device)
        seen_logits = []
        bar = tqdm(train_loader, disable=not accelerator.is_local_main_process)
        for step, batch in enumerate(bar):
            with accelerator.accumulate(model):
                outputs = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
                loss = torch.nn.functional.cross_entropy(outputs.logits, batch["labels"], weight=class_weights)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            epoch_loss += loss  # finds H205
            smooth = 0.98 * smooth + 0.02 * loss.detach()
            seen_logits.append(outputs.logits)  # finds H206
            bar.set_postfix(loss=loss.item())  # finds H201
            if step % 500 == 0:
                accelerator.print(f"epoch {epoch} step {step} smooth {smooth.item():.4f}")
        spread = torch.cat(seen_logits).std()
        mean = epoch_loss.item() / len(train_loader)
        accelerator.print(f"epoch {epoch}: mean {mean:.4f}, spread {spread.item():.3f}")

        model.eval()  # train() comes once, before the first epoch: finds H415
        right = total = 0
        for batch in test_loader:
            with torch.no_grad():
                logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
            guesses, labels = accelerator.gather_for_metrics((logits.argmax(-1), batch["labels"]))
            right += (guesses == labels).sum().item()
            total += labels.numel()
        accelerator.print(f"epoch {epoch}: accuracy {right / total:.4f}")
        torch.cuda.empty_cache()

    accelerator.wait_for_everyone()
    accelerator.unwrap_model(model).save_pretrained("imdb-model", save_function=accelerator.save)


if __name__ == "__main__":
    main()
