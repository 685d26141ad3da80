"""Runs a program that names no device, as users write it, and prints its losses as JSON.

accelerate uses torch_xla if it is installed.
"""

import json
import sys
import tempfile

import accelerate
import torch
import transformers

CONFIG = transformers.LlamaConfig(
    **{"vocab_size": 97, "hidden_size": 32, "intermediate_size": 64},
    **{"num_hidden_layers": 1, "num_attention_heads": 4},
)


def with_trainer(**options: object) -> dict[str, object]:
    transformers.set_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(CONFIG)
    texts = [torch.randint(3, 97, (16,)) for _ in range(24)]
    dataset = [{"input_ids": text, "labels": text} for text in texts]
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder,
            per_device_train_batch_size=4,
            num_train_epochs=1,
            learning_rate=1e-2,
            lr_scheduler_type="cosine",
            logging_steps=1,
            report_to=[],
            disable_tqdm=True,
            **options,
        )
        trainer = transformers.Trainer(
            model=model, args=arguments, train_dataset=dataset, eval_dataset=dataset[:8]
        )
        trainer.train()
        evaluated = trainer.evaluate()["eval_loss"]
        trainer.save_model(folder)
        loaded = transformers.AutoModelForCausalLM.from_pretrained(folder)
        total = sum(parameter.double().abs().sum().item() for parameter in loaded.parameters())
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return {"device": trainer.args.device.type, "losses": [*losses, evaluated], "total": total}


def with_accelerate(**options: object) -> dict[str, object]:
    transformers.set_seed(0)
    accelerator = accelerate.Accelerator(**options)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8)
    dataset = torch.utils.data.TensorDataset(torch.randn(32, 6), torch.randn(32, 3))
    loader = torch.utils.data.DataLoader(dataset, batch_size=4)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    losses = []
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = torch.nn.functional.mse_loss(model(x), y)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        losses.append(accelerator.gather(loss.detach()).mean().item())
    total = sum(parameter.double().abs().sum().item() for parameter in model.parameters())
    return {"device": accelerator.device.type, "losses": losses, "total": total}


if __name__ == "__main__":
    results = {
        "fused": with_trainer(optim="adamw_torch_fused", max_grad_norm=0.5),
        "not fused": with_trainer(optim="adamw_torch", gradient_accumulation_steps=2),
        # Without XLA, inductor would need a compiler for C++.
        "compiled": with_trainer(torch_compile=accelerate.utils.is_torch_xla_available()),
        "accelerate": with_accelerate(gradient_accumulation_steps=2),
    }
    sys.stdout.write("\n" + json.dumps(results))
