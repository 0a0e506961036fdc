"""Programs that generate, and train on text."""

import tempfile
from typing import Any

import torch
from programs.registry import Note, program
from torch import nn


def _language(vocabulary: int = 2000) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=512,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
        )
    )


@program
def generate_greedy(device: str, note: Note) -> None:
    """Generate greedily."""
    model = _language().to(device).eval()
    found = model.generate(torch.randint(3, 2000, (4, 32)).to(device), max_new_tokens=50, do_sample=False)
    note("length", found.shape[1])


@program
def generate_sampled(device: str, note: Note) -> None:
    """Generate by sampling of the 50 likeliest within 95 percent."""
    model = _language().to(device).eval()
    found = model.generate(
        torch.randint(3, 2000, (4, 32)).to(device), max_new_tokens=50, do_sample=True, top_k=50, top_p=0.95
    )
    note("length", found.shape[1])


@program
def generate_until_done(device: str, note: Note) -> None:
    """Sample from a small vocabulary, where sequences end before the limit."""
    model = _language(50).to(device).eval()
    found = model.generate(torch.randint(3, 50, (8, 16)).to(device), max_new_tokens=450, do_sample=True, top_k=0)
    note("length", found.shape[1])


@program
def generate_beams(device: str, note: Note) -> None:
    """Search with four beams."""
    model = _language().to(device).eval()
    found = model.generate(torch.randint(3, 2000, (2, 32)).to(device), max_new_tokens=30, num_beams=4)
    note("length", found.shape[1])


@program
def seq2seq_trainer(device: str, note: Note) -> None:
    """Train a small T5 with Seq2SeqTrainer, and predict with `generate`."""
    from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments, T5Config, T5ForConditionalGeneration

    model = T5ForConditionalGeneration(
        T5Config(vocab_size=500, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, decoder_start_token_id=0)
    )
    rows = [{"input_ids": torch.randint(3, 500, (24,)), "labels": torch.randint(3, 500, (12,))} for _ in range(8)]
    with tempfile.TemporaryDirectory() as folder:
        arguments = Seq2SeqTrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=4,
            per_device_eval_batch_size=4,
            num_train_epochs=1,
            predict_with_generate=True,
            generation_max_length=20,
            report_to=[],
            use_cpu=device == "cpu",
            save_strategy="no",
            dataloader_pin_memory=False,
        )
        trainer = Seq2SeqTrainer(
            model=model,
            args=arguments,
            train_dataset=rows,
            eval_dataset=rows,
            compute_metrics=lambda found: {"length": float(found.predictions.shape[1])},
        )
        trainer.train()
        note("length", trainer.evaluate()["eval_length"])


def _tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3, **{f"w{n}": n for n in range(4, 1000)}}
    raw = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=raw,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        model_input_names=["input_ids", "attention_mask"],
    )


def _texts(number: int) -> list[str]:
    return [
        " ".join(f"w{n}" for n in torch.randint(4, 1000, (int(torch.randint(5, 40, ())),)).tolist())
        for _ in range(number)
    ]


@program
def grpo(device: str, note: Note) -> None:
    """Take two GRPO steps of TRL."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    def reward(completions: list[str], **_: Any) -> list[float]:
        note("words", sum(len(each.split()) for each in completions))
        return [float(len(set(each.split()))) for each in completions]

    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=_language(1000),
            reward_funcs=reward,
            processing_class=_tokenizer(),
            train_dataset=Dataset.from_dict({"prompt": _texts(8)}),
            args=GRPOConfig(
                output_dir=folder,
                per_device_train_batch_size=4,
                num_generations=4,
                max_completion_length=24,
                max_prompt_length=32,
                max_steps=2,
                report_to=[],
                use_cpu=device == "cpu",
                bf16=False,
                save_strategy="no",
                dataloader_pin_memory=False,
                logging_steps=1,
            ),
        )
        trainer.train()


@program
def sft_packed(device: str, note: Note) -> None:
    """Train with packed rows with TRL's SFTTrainer."""
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    model = _language(1000)
    model.register_forward_pre_hook(
        lambda _, inputs, keywords: note("tokens", keywords["input_ids"].numel()), with_kwargs=True
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = SFTTrainer(
            model=model,
            processing_class=_tokenizer(),
            train_dataset=Dataset.from_dict({"text": _texts(64)}),
            args=SFTConfig(
                output_dir=folder,
                per_device_train_batch_size=2,
                max_length=128,
                packing=True,
                packing_strategy="wrapped",
                max_steps=3,
                report_to=[],
                use_cpu=device == "cpu",
                bf16=False,
                save_strategy="no",
                dataloader_pin_memory=False,
                logging_steps=1,
            ),
        )
        trainer.train()


@program
def assisted_generation(device: str, note: Note) -> None:
    """Generate with a smaller model that writes ahead: what the larger one would have written too is kept."""
    model, assistant = _language(200).to(device).eval(), _language(200).to(device).eval()
    calls = 0

    def count(*_: Any) -> None:
        nonlocal calls
        calls += 1

    model.register_forward_pre_hook(count)
    found = model.generate(
        torch.randint(3, 200, (1, 32)).to(device), max_new_tokens=40, do_sample=False, assistant_model=assistant
    )
    note("length", found.shape[1])
    note("calls", calls)


@program
def speculative(device: str, note: Note) -> None:
    """Sample ahead with a draft, and keep what the model accepts: the cache grows with each of its steps."""
    words, draft, model = nn.Embedding(40, 64), nn.GRU(64, 64), nn.GRU(64, 64)
    heads = nn.ModuleList([nn.Linear(64, 40), nn.Linear(64, 40)])
    parts = nn.ModuleList([words, draft, model, heads]).to(device)
    text = torch.randint(0, 40, (16,)).to(device)
    kept, rounds = [], 0
    with torch.no_grad():
        while len(text) < 200:
            ahead, likely = text, []
            for _ in range(4):
                chances = heads[0](draft(words(ahead))[0][-1]).softmax(-1)
                likely.append(chances)
                ahead = torch.cat([ahead, chances.multinomial(1)])
            true = heads[1](model(words(ahead))[0][-5:]).softmax(-1)
            new = ahead[-4:, None]
            ratio = true[:4].gather(1, new) / torch.stack(likely).gather(1, new)
            accepted = int((torch.rand_like(ratio) < ratio).int().cumprod(0).sum())
            kept.append(torch.zeros(len(ahead), 512, device=device))
            text = torch.cat([ahead[: len(text) + accepted], true[accepted].multinomial(1)])
            rounds += 1
    note("rounds", rounds)
    note("words", len(text))
    del parts


@program
def nucleus(device: str, note: Note) -> None:
    """Keep the likeliest words of a language model that make up 90 percent, and score them again."""
    model = _language(2000).to(device).eval()
    again = nn.Linear(128, 128).to(device)
    ids = torch.randint(3, 2000, (4, 24)).to(device)
    with torch.no_grad():
        for _ in range(8):
            chances, order = model(ids).logits[:, -1].softmax(-1).sort(descending=True)
            inside = chances.cumsum(-1) - chances < 0.9
            note("words", int(inside.sum()))
            vectors = again(model.get_input_embeddings()(order[inside]))
            note("width", int(inside.sum(-1).max()))
            picked = (chances * inside).multinomial(1)
            ids = torch.cat([ids, order.gather(1, picked)], 1)
            del vectors


@program
def least_chance(device: str, note: Note) -> None:
    """Sample from the words that are at least half as likely as the likeliest (min-p), with a recurrent model."""
    words, cell, head = nn.Embedding(500, 96), nn.GRU(96, 96, batch_first=True), nn.Linear(96, 500)
    parts = nn.ModuleList([words, cell, head]).to(device)
    ids = torch.randint(0, 500, (8, 12)).to(device)
    with torch.no_grad():
        for _ in range(8):
            chances = head(cell(words(ids))[0][:, -1] * 4).softmax(-1)
            likely = chances >= chances.amax(-1, keepdim=True) / 2
            note("words", int(likely.sum()))
            row, word = likely.nonzero(as_tuple=True)
            again = head(words(word))
            note("fullest", int(torch.bincount(row, minlength=8).max()))
            ids = torch.cat([ids, (chances * likely).multinomial(1)], 1)
            del again
    del parts
