"""Language models: losses of tokens, preferences and policies, packed texts, experts, heads and adapters."""

import functools
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from tests.training.guard.idioms.expected import Expected
from tests.training.guard.idioms.idiom import ITEMS, STEPS, WIDTH, frozen, inputs, net, world
from tests.training.guard.world import World

EXPECTED: dict[str, Expected] = {
    "sft_items_counted_by_the_trainer": "parts",  # a sum, over a number that is part of the batch
    "dpo_with_metrics": "parts",
    "simpo_collated_in_the_loss": "parts",
    "dr_grpo_constant_length": "parts",
    "distillation_batchmean": "parts",  # `batchmean` divides by items, whatever dimensions there are
    "fairseq_sum_with_sample_size": "parts",  # a sum, whose gradients are divided just before the step
    "prefix_tuning": "parts",
    "ctc_with_flat_targets": "parts",  # a mean over items, although the flat targets have no row for each
    "packed_rows_of_documents": "weighted",  # by documents
    "mean_over_padding_of_the_longest": "weighted",  # by items times the length of the longest
    "dapo_truncated_masked": "weighted",  # by tokens of what was not truncated
    "reward_model_all_rankings": "weighted",  # by pairs
    "fused_linear_cross_entropy_with_z_loss": "weighted",  # by tokens of completions
    "crf_token_mean": "weighted",  # by tokens
    "electra_replaced_tokens": "random",
    "lora_with_dropout": "random",
    "neftune_by_a_hook": "random",
    "padding_free_with_offsets": "coupled",  # rows are tokens, which attend to each other
    "ipo_pairs_in_one_tensor": "coupled",  # a row of the first half belongs to one of the second half
    "kto_with_batch_kl": "coupled",  # each item is compared with a mean over the batch
    "orpo_two_normalisers": "coupled",  # a mean over tokens and one over pairs
    "grpo_groups_by_prompt_id": "coupled",  # advantages within the groups that the batch happens to have
    "ppo_masks_of_values_and_actions": "coupled",  # two means over two masks
    "rloo_leave_one_out": "coupled",  # each item has the mean of others as its baseline
    "moe_auxiliary_loss_in_backward": "coupled",  # no weight of the loss reaches the gradient of the auxiliary loss
    "multi_token_prediction": "coupled",  # each head has a mean over another number of tokens
    "grad_cached_embeddings": "coupled",  # the others of the batch are the negatives
    "embedding_scaled_by_frequency": "coupled",  # backward divides by how often a token is in the batch
}
WORDS, LENGTH, IGNORED = 13, 10, -100
LENGTHS = (10, 9, 10, 8, 3, 4, 3, 3)
PROMPTS = (2, 1, 2, 2, 1, 2, 1, 2)


class Decoder(nn.Module):
    """A causal transformer of one layer."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(WORDS, width), nn.Embedding(64, width)
        self.inner, self.outer = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.head = nn.Linear(width, WORDS, bias=False)

    def hidden(
        self,
        tokens: torch.Tensor,
        *,
        places: torch.Tensor | None = None,
        allowed: torch.Tensor | None = None,
        past: Sequence[torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """What comes of tokens: of other places, with other tokens to attend to, or with keys and values before."""
        length = tokens.size(-1)
        x = self.table(tokens) + self.places(torch.arange(length) if places is None else places)
        query, key, value = self.inner(x).chunk(3, -1)
        if allowed is None:
            allowed = torch.ones(length, length, dtype=torch.bool).tril()
        if past is not None:
            key, value = (
                torch.cat([before.expand(len(tokens), -1, -1), now], 1)
                for before, now in zip(past, (key, value), strict=True)
            )
            allowed = torch.cat([torch.ones(length, key.size(1) - length, dtype=torch.bool), allowed], 1)
        scores = (query @ key.mT / x.size(-1) ** 0.5).masked_fill(~allowed, float("-inf"))
        return torch.tanh(x + self.outer(scores.softmax(-1) @ value))

    def forward(self, tokens: torch.Tensor, **options: Any) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.hidden(tokens, **options))
        return logits.to(torch.get_default_dtype())


def _texts(lengths: Sequence[int] = LENGTHS, prompts: Sequence[int] = PROMPTS) -> dict[str, torch.Tensor]:
    """Tokens that are padded on the right, and as labels those that come after a prompt."""
    places = torch.arange(LENGTH)
    padding = places >= torch.tensor(lengths)[:, None]
    tokens = torch.randint(1, WORDS, (len(lengths), LENGTH)).masked_fill(padding, 0)
    hidden = padding | (places < torch.tensor(prompts)[:, None])
    return {"input_ids": tokens, "labels": tokens.masked_fill(hidden, IGNORED)}


def _next(logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The logarithm of each next token's probability, zero where there is no label; and where there is one."""
    labels = labels[:, 1:]
    counted = labels != IGNORED
    each = logits[:, :-1].log_softmax(-1).gather(2, labels.clamp(min=0)[..., None])[..., 0]
    return each * counted, counted


def _pairs() -> dict[str, torch.Tensor]:
    """Chosen and rejected texts."""
    rejected = (9, 10, 8, 9, 4, 3, 3, 4)
    sides = {"chosen": _texts(), "rejected": _texts(rejected)}
    return {f"{side}_{name}": value for side, texts in sides.items() for name, value in texts.items()}


def _of_pairs(model: Decoder, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """As `_next`, of the chosen texts and then of the rejected ones, in one forward."""
    tokens = torch.cat([batch["chosen_input_ids"], batch["rejected_input_ids"]])
    return _next(model(tokens), torch.cat([batch["chosen_labels"], batch["rejected_labels"]]))


# ---- a mean or a sum over items


def sft_items_counted_by_the_trainer() -> World:
    """A sum over completions, over the tokens of all batches that come before the next update."""
    model = Decoder()
    batches = [_texts() for _ in range(STEPS)]
    items = sum((batch["labels"][:, 1:] != IGNORED).sum() for batch in batches)
    batches = [batch | {"num_items_in_batch": items} for batch in batches]

    def loss_of(batch: Any) -> torch.Tensor:
        logits = model(batch["input_ids"])
        labels = F.pad(batch["labels"], (0, 1), value=IGNORED)[:, 1:]
        summed = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum")
        return summed / batch["num_items_in_batch"]

    found = world(model, batches, loss_of)
    found.updates = lambda number: number == STEPS - 1
    return found


def dpo_with_metrics() -> World:
    """Both texts of a pair in one forward, a frozen reference, and rewards in lists that only a log reads."""
    model, reference, metrics = Decoder(), frozen(Decoder()), defaultdict(list)

    def loss_of(batch: Any) -> torch.Tensor:
        ours = _of_pairs(model, batch)[0].sum(1)
        with torch.no_grad():
            theirs = _of_pairs(reference, batch)[0].sum(1)
        chosen, rejected = (0.3 * (ours - theirs)).chunk(2)
        metrics["rewards/accuracies"].append((chosen > rejected).to(chosen.dtype).mean().item())
        metrics["rewards/margins"].append((chosen - rejected).detach().mean().item())
        return -F.logsigmoid(chosen - rejected).mean()

    return world(model, [_pairs() for _ in range(STEPS)], loss_of)


def simpo_collated_in_the_loss() -> World:
    """A list of pairs of texts of any length, which are padded to the longest on the right; each has its own mean."""
    model = Decoder()

    def pair(chosen: int, rejected: int, prompt: int) -> dict[str, Any]:
        start = torch.randint(1, WORDS, (prompt,))
        ends = {"chosen": chosen - prompt, "rejected": rejected - prompt}
        texts = {side: torch.cat([start, torch.randint(1, WORDS, (end,))]) for side, end in ends.items()}
        return texts | {"prompt": prompt}

    def means(batch: Any, side: str) -> torch.Tensor:
        tokens = pad_sequence([one[side] for one in batch], batch_first=True)
        labels = [one[side].where(torch.arange(len(one[side])) >= one["prompt"], IGNORED) for one in batch]
        each, counted = _next(model(tokens), pad_sequence(labels, batch_first=True, padding_value=IGNORED))
        return each.sum(1) / counted.sum(1)

    def loss_of(batch: Any) -> torch.Tensor:
        return -F.logsigmoid(2.0 * (means(batch, "chosen") - means(batch, "rejected")) - 0.5).mean()

    lengths = list(zip(LENGTHS, (8, 10, 9, 9, 4, 3, 4, 3), PROMPTS, strict=True))
    return world(model, [[pair(*one) for one in lengths] for _ in range(STEPS)], loss_of)


def _completions() -> dict[str, torch.Tensor]:
    """What a policy has written, how likely that was, and how good."""
    texts = _texts()
    old = -2.7 + 0.3 * torch.randn(ITEMS, LENGTH - 1)
    scale = torch.where(torch.arange(ITEMS) < ITEMS // 2, 2.0, 0.5)
    return texts | {"old_logps": old, "advantages": torch.randn(ITEMS) * scale}


def _clipped(ours: torch.Tensor, batch: Any, low: float, high: float) -> torch.Tensor:
    """The clipped loss of a policy, for each token."""
    ratio = (ours - batch["old_logps"]).exp()
    advantages = batch["advantages"][:, None]
    return -torch.minimum(ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages)


def dr_grpo_constant_length() -> World:
    """A sum over tokens, over items times the longest that a completion may be."""
    model = Decoder()

    def loss_of(batch: Any) -> torch.Tensor:
        ours, counted = _next(model(batch["input_ids"]), batch["labels"])
        each = _clipped(ours, batch, 0.9, 0.9)
        return (each * counted).sum() / (len(each) * 12)

    return world(model, [_completions() for _ in range(STEPS)], loss_of)


def distillation_batchmean() -> World:
    """A divergence at a temperature, of logits with three dimensions, and a distance of hidden states."""
    model, teacher = nn.ModuleDict({"student": Decoder(), "up": nn.Linear(WIDTH, 8)}), frozen(Decoder(8))
    batches = [_texts((LENGTH,) * ITEMS) for _ in range(STEPS)]

    def loss_of(batch: Any) -> torch.Tensor:
        tokens = batch["input_ids"]
        with torch.no_grad():
            their_hidden = teacher.hidden(tokens)
            theirs = teacher.head(their_hidden).to(torch.get_default_dtype())
        hidden = model["student"].hidden(tokens)
        ours = model["student"].head(hidden).to(torch.get_default_dtype())
        soft = F.kl_div((ours / 2).log_softmax(-1), (theirs / 2).softmax(-1), reduction="batchmean") * 4
        return soft + F.mse_loss(model["up"](hidden).to(their_hidden.dtype), their_hidden)

    return world(model, batches, loss_of)


class Translator(nn.Module):
    """The mean of a source text is added to each hidden state of a decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.source, self.decoder, self.join = nn.Embedding(WORDS, WIDTH), Decoder(), nn.Linear(WIDTH, WIDTH)

    def forward(self, source: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        context = self.join(self.source(source).mean(1))
        logits: torch.Tensor = self.decoder.head(self.decoder.hidden(tokens) + context[:, None])
        return logits.to(torch.get_default_dtype())


def fairseq_sum_with_sample_size() -> World:
    """A sum of smoothed losses; gradients are divided just before the step by the tokens that were counted."""
    model, sizes = Translator(), []

    def loss_of(batch: Any) -> torch.Tensor:
        likely = model(batch["source"], batch["input_ids"])[:, :-1].log_softmax(-1)
        target = batch["labels"][:, 1:]
        counted = target != IGNORED
        sizes.append(int(counted.sum()))
        exact = -likely.gather(2, target.clamp(min=0)[..., None])[..., 0]
        smooth = -likely.sum(-1)
        share = 0.1 / (WORDS - 1)
        return ((0.9 - share) * exact + share * smooth)[counted].sum()

    def divide() -> None:
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.div_(sum(sizes))
        sizes.clear()

    batches = [_texts() | {"source": torch.randint(WORDS, (ITEMS, 5))} for _ in range(STEPS)]
    return world(model, batches, loss_of, before_step=divide)


class Prefix(nn.Module):
    """Keys and values of a few tokens that do not exist, made by a net; and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Parameter(torch.randn(3, WIDTH))
        self.make = nn.Sequential(nn.Linear(WIDTH, 5), nn.Tanh(), nn.Linear(5, 2 * WIDTH))
        self.base, self.classes = frozen(Decoder()), nn.Linear(WIDTH, 4)

    def forward(self, tokens: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        past = self.make(self.tokens).chunk(2, -1)
        hidden = self.base.hidden(tokens, past=past)
        logits: torch.Tensor = self.classes(hidden[torch.arange(len(tokens)), lengths - 1])
        return logits


def prefix_tuning() -> World:
    """A frozen model with trained keys and values; the last token of each text is classified."""
    model = Prefix()
    batches = [
        {"input_ids": _texts()["input_ids"], "lengths": torch.tensor(LENGTHS), "y": torch.randint(4, (ITEMS,))}
        for _ in range(STEPS)
    ]
    return world(model, batches, lambda b: F.cross_entropy(model(b["input_ids"], b["lengths"]), b["y"]))


def ctc_with_flat_targets() -> World:
    """Speech: the targets of all items are one long tensor, and their lengths another one."""
    model = net(out=WORDS)
    lengths = torch.tensor([4, 5, 4, 4, 1, 1, 2, 1])
    batches = [
        {
            "x": x,
            "x_lengths": torch.tensor([12, 12, 11, 10, 6, 5, 6, 5]),
            "targets": torch.randint(1, WORDS, (int(lengths.sum()),)),
            "lengths": lengths,
        }
        for x in inputs(ITEMS, 12, WIDTH)
    ]

    def loss_of(batch: Any) -> torch.Tensor:
        likely = model(batch["x"]).to(torch.get_default_dtype()).log_softmax(-1).transpose(0, 1)
        return F.ctc_loss(likely, batch["targets"], batch["x_lengths"], batch["lengths"], zero_infinity=True)

    return world(model, batches, loss_of)


# ---- a mean over something else


def packed_rows_of_documents() -> World:
    """Rows are filled with documents, told apart by places that begin anew; the loss is the mean over documents."""
    model = Decoder()
    rows = [(3, 3, 2, 2), (4, 3, 3), (2, 3, 3, 2), (3, 3, 4), (10,), (10,), (10,), (10,)]
    places = torch.stack([torch.cat([torch.arange(length) for length in row]) for row in rows])
    batches = [{"input_ids": torch.randint(1, WORDS, (ITEMS, LENGTH)), "position_ids": places} for _ in range(STEPS)]

    def loss_of(batch: Any) -> torch.Tensor:
        tokens, places = batch["input_ids"], batch["position_ids"]
        documents = (places == 0).cumsum(1)
        allowed = (documents[:, :, None] == documents[:, None]) & (places[:, :, None] >= places[:, None])
        labels = tokens.where(places > 0, IGNORED)
        each, counted = _next(model(tokens, places=places, allowed=allowed), labels)
        number = (documents + torch.arange(len(tokens))[:, None] * (LENGTH + 1))[:, 1:].flatten()
        none = torch.zeros(len(tokens) * (LENGTH + 1))
        lengths = none.index_add(0, number, counted.flatten().to(none.dtype))
        sums = none.index_add(0, number, each.flatten())
        return -(sums / lengths.clamp(min=1)).sum() / (lengths > 0).sum()

    return world(model, batches, loss_of)


def mean_over_padding_of_the_longest() -> World:
    """A list of texts; the mean over all places of the padded batch, those of padding with a loss of zero."""
    model = Decoder()

    def loss_of(batch: Any) -> torch.Tensor:
        tokens = pad_sequence(batch, batch_first=True)
        each = F.cross_entropy(model(tokens)[:, :-1].mT, tokens[:, 1:], ignore_index=0, reduction="none")
        return each.mean()

    batches = [[torch.randint(1, WORDS, (length,)) for length in LENGTHS] for _ in range(STEPS)]
    return world(model, batches, loss_of)


def dapo_truncated_masked() -> World:
    """A mean over the tokens of all completions, without those that were cut off; clipped more below than above."""
    model = Decoder()
    truncated = torch.tensor([False, False, True, False, False, True, False, True])
    batches = [_completions() | {"is_truncated": truncated} for _ in range(STEPS)]

    def loss_of(batch: Any) -> torch.Tensor:
        ours, counted = _next(model(batch["input_ids"]), batch["labels"])
        counted = counted & ~batch["is_truncated"][:, None]
        each = _clipped(ours, batch, 0.9, 1.5)
        return (each * counted).sum() / counted.sum().clamp(min=1)

    return world(model, batches, loss_of)


def reward_model_all_rankings() -> World:
    """Each prompt has from two to four answers, the best first; the mean over all pairs of answers to one prompt."""
    model = net(out=1)
    answers = torch.tensor([4, 4, 4, 4, 2, 2, 2, 2])
    batches = [{"x": x, "answers": answers} for x in inputs(ITEMS, 4, WIDTH)]

    def loss_of(batch: Any) -> torch.Tensor:
        rewards = model(batch["x"])[..., 0].to(torch.get_default_dtype())
        exists = torch.arange(4) < batch["answers"][:, None]
        pairs = (exists[:, :, None] & exists[:, None]) & torch.ones(4, 4, dtype=torch.bool).triu(1)
        return -F.logsigmoid(rewards[:, :, None] - rewards[:, None])[pairs].mean()

    return world(model, batches, loss_of)


class FusedCrossEntropy(torch.autograd.Function):
    """Logits, their loss and its gradients a few rows at a time, all of them in forward."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        count = (labels != IGNORED).sum().clamp(min=1)
        of_hidden, of_weight, loss = torch.zeros_like(hidden), torch.zeros_like(weight), weight.new_zeros(())
        for rows in torch.arange(len(hidden)).split(16):
            logits = (hidden[rows] @ weight.T).to(weight.dtype)
            norm, label = logits.logsumexp(-1), labels[rows]
            counted = (label != IGNORED).to(weight.dtype) / count
            chosen = F.one_hot(label.clamp(min=0), len(weight)).to(weight.dtype)
            loss += ((norm - (logits * chosen).sum(-1) + 0.1 * norm.pow(2)) * counted).sum()
            slope = (logits.softmax(-1) * (1 + 0.2 * norm)[:, None] - chosen) * counted[:, None]
            of_hidden[rows] = (slope @ weight).to(hidden.dtype)
            of_weight += (slope.T @ hidden[rows]).to(weight.dtype)
        ctx.save_for_backward(of_hidden, of_weight)
        return loss

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        of_hidden, of_weight = ctx.saved_tensors
        return of_hidden * gradient, of_weight * gradient, None


def fused_linear_cross_entropy_with_z_loss() -> World:
    """Liger's kernel, in Python: no logits of the whole batch, and a mean over the completions' tokens."""
    model = Decoder()

    def loss_of(batch: Any) -> torch.Tensor:
        hidden, labels = model.hidden(batch["input_ids"])[:, :-1], batch["labels"][:, 1:]
        loss: torch.Tensor = FusedCrossEntropy.apply(hidden.flatten(0, 1), model.head.weight, labels.flatten())
        return loss

    return world(model, [_texts() for _ in range(STEPS)], loss_of)


class Tagger(nn.Module):
    """Tags of tokens, and how one tag follows another."""

    def __init__(self, tags: int = 4) -> None:
        super().__init__()
        self.net, self.follows, self.begins = net(out=tags), nn.Parameter(torch.randn(tags, tags)), torch.zeros(tags)

    def forward(self, x: torch.Tensor, tags: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        scores = self.net(x).to(torch.get_default_dtype())
        exists = torch.arange(x.size(1)) < lengths[:, None]
        own = scores.gather(2, tags[..., None])[..., 0]
        own[:, 1:] = own[:, 1:] + self.follows[tags[:, :-1], tags[:, 1:]]
        alpha = scores[:, 0] + self.begins
        for place in range(1, x.size(1)):
            further = (alpha[:, :, None] + self.follows).logsumexp(1) + scores[:, place]
            alpha = further.where(exists[:, place, None], alpha)
        return (alpha.logsumexp(1) - (own * exists).sum(1)).sum() / exists.sum()


def crf_token_mean() -> World:
    """A conditional random field: the sum over sequences, over the number of all tokens."""
    model = Tagger()
    batches = [
        {"x": x, "tags": torch.randint(4, (ITEMS, LENGTH)), "lengths": torch.tensor(LENGTHS)}
        for x in inputs(ITEMS, LENGTH, WIDTH)
    ]
    return world(model, batches, lambda b: model(b["x"], b["tags"], b["lengths"]))


# ---- a mean over items, with random numbers


def electra_replaced_tokens() -> World:
    """Two tokens of each text are hidden; another net is to find which ones a generator has replaced."""
    model = nn.ModuleDict({"generator": Decoder(), "judge": Decoder(), "found": nn.Linear(WIDTH, 1)})
    everywhere = torch.ones(LENGTH, LENGTH, dtype=torch.bool)

    def loss_of(batch: Any) -> torch.Tensor:
        tokens = batch["input_ids"]
        places = torch.rand(len(tokens), LENGTH).argsort(1)[:, :2]
        hidden = tokens.scatter(1, places, 0)
        logits = model["generator"](hidden, allowed=everywhere)
        logits = logits.gather(1, places[..., None].expand(-1, -1, WORDS)).flatten(0, 1)
        guessed = torch.multinomial(logits.detach().softmax(-1), 1).view_as(places)
        replaced = tokens.scatter(1, places, guessed)
        found = model["found"](model["judge"].hidden(replaced, allowed=everywhere))[..., 0]
        wrong = F.binary_cross_entropy_with_logits(found.to(torch.get_default_dtype()), (replaced != tokens) * 1.0)
        return F.cross_entropy(logits, tokens.gather(1, places).flatten()) + 5 * wrong

    return world(model, [_texts((LENGTH,) * ITEMS) for _ in range(STEPS)], loss_of)


class LowRank(nn.Module):
    """A frozen layer with an adapter, which has its own dropout and begins as zero."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer, self.dropout = frozen(layer), nn.Dropout(0.3)
        self.down = nn.Linear(layer.in_features, 2, bias=False)
        self.up = nn.Linear(2, layer.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(x) + 4 * self.up(self.down(self.dropout(x)))
        return out


def lora_with_dropout() -> World:
    """Adapters are trained, and nothing else."""
    model = frozen(Decoder())
    model.inner, model.outer = LowRank(model.inner), LowRank(model.outer)
    batches = [_texts((LENGTH,) * ITEMS, (0,) * ITEMS) for _ in range(STEPS)]
    return world(model, batches, lambda b: -_next(model(b["input_ids"]), b["labels"])[0].mean())


def neftune_by_a_hook() -> World:
    """A hook adds noise to embeddings; each text has a mean of its own."""
    model = Decoder()

    def add_noise(module: nn.Module, args: Any, out: torch.Tensor) -> torch.Tensor:
        if not module.training:
            return out
        most = 5 / (out.size(1) * out.size(2)) ** 0.5
        return out + torch.zeros_like(out).uniform_(-most, most)

    model.table.register_forward_hook(add_noise)

    def loss_of(batch: Any) -> torch.Tensor:
        each, counted = _next(model(batch["input_ids"]), batch["labels"])
        return -(each.sum(1) / counted.sum(1)).mean()

    return world(model, [_texts() for _ in range(STEPS)], loss_of)


# ---- what cannot be divided


def padding_free_with_offsets() -> World:
    """All texts are one row of tokens; offsets say where each begins, as kernels for such rows want it."""
    model = Decoder()
    offsets = torch.tensor([0, *LENGTHS]).cumsum(0)
    places = torch.cat([torch.arange(length) for length in LENGTHS])
    batches = [
        {"input_ids": torch.randint(1, WORDS, (len(places),)), "position_ids": places, "cu_seq_lens": offsets}
        for _ in range(STEPS)
    ]

    def loss_of(batch: Any) -> torch.Tensor:
        tokens, places = batch["input_ids"], batch["position_ids"]
        numbers = torch.arange(len(tokens))
        texts = torch.searchsorted(batch["cu_seq_lens"], numbers, right=True)
        allowed = (texts[:, None] == texts) & (numbers[:, None] >= numbers)
        logits = model(tokens, places=places, allowed=allowed)
        return F.cross_entropy(logits[:-1], tokens.where(places > 0, IGNORED)[1:])

    return world(model, batches, loss_of)


def ipo_pairs_in_one_tensor() -> World:
    """Rows are all chosen texts and then all rejected ones, as preference collators have it."""
    model = Decoder()
    lengths = (10, 9, 4, 3, 9, 10, 3, 4)
    batches = [_texts(lengths) | {"ref_logps": -2.7 + 0.5 * torch.randn(ITEMS)} for _ in range(STEPS)]

    def loss_of(batch: Any) -> torch.Tensor:
        each, counted = _next(model(batch["input_ids"]), batch["labels"])
        chosen, rejected = (each.sum(1) / counted.sum(1) - batch["ref_logps"]).chunk(2)
        return (chosen - rejected - 1).pow(2).mean()

    return world(model, batches, loss_of)


def kto_with_batch_kl() -> World:
    """Each text is measured against a divergence that is estimated from texts of other prompts, over the batch."""
    model = Decoder()
    offsets = torch.where(torch.arange(ITEMS) < ITEMS // 2, 4.0, 0.5)

    def sums(batch: Any, kind: str) -> torch.Tensor:
        return _next(model(batch[f"{kind}input_ids"]), batch[f"{kind}labels"])[0].sum(1)

    @torch.no_grad()
    def batch_of() -> dict[str, Any]:
        batch: dict[str, Any] = _texts() | {f"kl_{name}": value for name, value in _texts().items()}
        batch |= {"reference": sums(batch, "") + torch.randn(ITEMS), "kl_reference": sums(batch, "kl_") - offsets}
        return batch | {"label": [True, False, True, True, False, True, False, False]}

    def loss_of(batch: Any) -> torch.Tensor:
        with torch.no_grad():
            divergence = (sums(batch, "kl_") - batch["kl_reference"]).mean().clamp(min=0)
        ratio = sums(batch, "") - batch["reference"]
        desired = torch.tensor(batch["label"])
        chosen = 1 - (0.5 * (ratio[desired] - divergence)).sigmoid()
        rejected = 1 - (0.5 * (divergence - ratio[~desired])).sigmoid()
        return torch.cat([chosen, 1.5 * rejected]).mean()

    return world(model, [batch_of() for _ in range(STEPS)], loss_of)


def orpo_two_normalisers() -> World:
    """The chosen texts' mean over tokens, and odds with a mean over pairs."""
    model = Decoder()

    def loss_of(batch: Any) -> torch.Tensor:
        each, counted = _of_pairs(model, batch)
        pairs = len(each) // 2
        means = each.sum(1) / counted.sum(1)
        chosen, rejected = (means - torch.log1p(-means.exp())).chunk(2)
        return -each[:pairs].sum() / counted[:pairs].sum() - 2 * F.logsigmoid(chosen - rejected).mean()

    return world(model, [_pairs() for _ in range(STEPS)], loss_of)


def grpo_groups_by_prompt_id() -> World:
    """Rewards become advantages within the loss, for each group of answers to one prompt, known by a name."""
    model = Decoder()
    names = numpy.array(["one", "two"] * (ITEMS // 2), dtype=object)
    rewards = torch.tensor([3.0, 1.0, 2.0, 4.0, 0.0, 0.5, 0.3, 0.1])
    batches = [_texts() | {"rewards": rewards + 0.1 * torch.randn(ITEMS), "uid": names} for _ in range(STEPS)]

    def advantages(batch: Any) -> torch.Tensor:
        groups = defaultdict(list)
        for name, reward in zip(batch["uid"], batch["rewards"], strict=True):
            groups[name].append(reward)
        means = {name: torch.stack(group).mean() for name, group in groups.items()}
        spreads = {name: torch.stack(group).std(correction=0) for name, group in groups.items()}
        each = zip(batch["uid"], batch["rewards"], strict=True)
        return torch.stack([(reward - means[name]) / (spreads[name] + 1e-4) for name, reward in each])

    def loss_of(batch: Any) -> torch.Tensor:
        ours, counted = _next(model(batch["input_ids"]), batch["labels"])
        each = -(ours - ours.detach()).exp() * advantages(batch)[:, None]
        return ((each * counted).sum(1) / counted.sum(1)).mean()

    return world(model, batches, loss_of)


def ppo_masks_of_values_and_actions() -> World:
    """A clipped policy and clipped values; the mask of values has one place more for each text."""
    model = nn.ModuleDict({"policy": Decoder(), "value": nn.Linear(WIDTH, 1)})
    lengths = torch.tensor([8, 9, 8, 7, 1, 2, 1, 1])
    scale = torch.where(lengths > 2, 1.0, 3.0)[:, None]

    def batch_of() -> dict[str, Any]:
        tokens = torch.randint(1, WORDS, (ITEMS, LENGTH))
        old = {"old_logps": -2.7 + 0.3 * torch.randn(ITEMS, LENGTH - 1), "old_values": torch.randn(ITEMS, LENGTH - 1)}
        more = {"advantages": torch.randn(ITEMS, LENGTH - 1) * scale, "returns": torch.randn(ITEMS, LENGTH - 1) * scale}
        return {"input_ids": tokens, "lengths": lengths, **old, **more}

    def loss_of(batch: Any) -> torch.Tensor:
        places, tokens = torch.arange(LENGTH - 1), batch["input_ids"]
        acted, valued = places < batch["lengths"][:, None], places <= batch["lengths"][:, None]
        hidden = model["policy"].hidden(tokens)
        logits = model["policy"].head(hidden).to(torch.get_default_dtype())
        ratio = (_next(logits, tokens)[0] - batch["old_logps"]).exp()
        values, old = model["value"](hidden)[:, :-1, 0].to(torch.get_default_dtype()), batch["old_values"]
        near = torch.clamp(values, old - 0.5, old + 0.5)
        of_values = torch.maximum((values - batch["returns"]).pow(2), (near - batch["returns"]).pow(2))
        of_policy = torch.maximum(-ratio * batch["advantages"], -ratio.clamp(0.8, 1.2) * batch["advantages"])
        return of_policy[acted].mean() + 0.2 * of_values[valued].mean()

    return world(model, [batch_of() for _ in range(STEPS)], loss_of)


def rloo_leave_one_out() -> World:
    """Four answers to each of two prompts, all first answers first; the others' mean is an answer's baseline."""
    model = Decoder()
    rewards = torch.tensor([3.0, -1.0, 2.0, -2.0, 0.0, 4.0, 0.5, 3.0])
    batches = [_texts() | {"rewards": rewards + 0.1 * torch.randn(ITEMS)} for _ in range(STEPS)]

    def loss_of(batch: Any) -> torch.Tensor:
        ours = _next(model(batch["input_ids"]), batch["labels"])[0].sum(1)
        rewards = batch["rewards"].reshape(4, -1)
        baseline = (rewards.sum(0) - rewards) / 3
        return -((ours - ours.detach()).exp() * (rewards - baseline).flatten()).mean()

    return world(model, batches, loss_of)


class WithAuxiliary(torch.autograd.Function):
    """Pass a tensor on, and give an auxiliary loss a gradient of one, whatever gradient comes."""

    @staticmethod
    def forward(ctx: Any, out: torch.Tensor, auxiliary: torch.Tensor) -> torch.Tensor:
        ctx.type = auxiliary.dtype
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return gradient, torch.ones((), dtype=ctx.type)


class Experts(nn.Module):
    """Two of four experts for each token, balanced within each text."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(WIDTH, 4, bias=False), nn.ModuleList([net() for _ in range(4)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.gate(x).to(torch.get_default_dtype()).softmax(-1)
        best = scores.topk(2, -1)
        share = torch.zeros_like(scores).scatter(-1, best.indices, best.values)
        out = sum(share[..., n, None] * expert(x) for n, expert in enumerate(self.experts))
        used = F.one_hot(best.indices, 4).sum(2).to(scores.dtype).mean(1) * 2
        passed: torch.Tensor = WithAuxiliary.apply(out, 0.5 * (used * scores.mean(1)).sum(1).mean())
        return passed


def moe_auxiliary_loss_in_backward() -> World:
    """DeepSeek's way: the auxiliary loss is no term of the loss, and its gradient is not scaled with the loss's."""
    model = Experts()
    batches = [{"x": x, "y": torch.randint(4, (ITEMS,))} for x in inputs(ITEMS, 5, WIDTH)]
    return world(model, batches, lambda b: F.cross_entropy(model(b["x"]).mean(1), b["y"]))


def multi_token_prediction() -> World:
    """Heads for the next token and those after it, each with the mean over the tokens that are left in its labels."""
    model = nn.ModuleDict({"trunk": Decoder(), "heads": nn.ModuleList([nn.Linear(WIDTH, WORDS) for _ in range(3)])})
    batches = [_texts((10, 9, 10, 8, 3, 2, 3, 2), (0,) * ITEMS) for _ in range(STEPS)]

    def loss_of(batch: Any) -> torch.Tensor:
        hidden, loss = model["trunk"].hidden(batch["input_ids"]), torch.zeros(())
        for ahead, head in enumerate(model["heads"], 1):
            logits = head(hidden[:, :-ahead]).to(torch.get_default_dtype())
            labels = batch["labels"][:, ahead:]
            summed = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum")
            loss = loss + summed / (labels != IGNORED).sum().clamp(min=1)
        return loss

    return world(model, batches, loss_of)


def grad_cached_embeddings() -> World:
    """Sentences in small parts: gradients of embeddings are computed with the loss, and a hook runs the rest."""
    model = net()
    sides = ("anchor", "positive")

    def again(batch: Any, slopes: Any, upstream: torch.Tensor) -> None:
        with torch.enable_grad():
            for side, slope in zip(sides, slopes, strict=True):
                for rows, part in zip(batch[side].split(2), slope.split(2), strict=True):
                    ((model(rows) * part).sum() * upstream).backward()

    def loss_of(batch: Any) -> torch.Tensor:
        with torch.no_grad():
            parts = [[model(rows) for rows in batch[side].split(2)] for side in sides]
        found = [torch.cat(part).to(torch.get_default_dtype()).requires_grad_() for part in parts]
        anchors, positives = (F.normalize(one, dim=1) for one in found)
        loss = F.cross_entropy(5 * anchors @ positives.T, torch.arange(len(anchors)))
        slopes = torch.autograd.grad(loss, found)
        loss = loss.detach().requires_grad_()
        loss.register_hook(functools.partial(again, batch, slopes))
        return loss

    batches = [{"anchor": x, "positive": x + torch.randn(ITEMS, WIDTH)} for x in inputs()]
    return world(model, batches, loss_of)


class Bags(nn.Module):
    """The sum of a few embeddings, whose gradients are divided by how often the batch has each."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(WORDS, WIDTH, mode="sum", scale_grad_by_freq=True)
        self.head = nn.Linear(WIDTH, 4, bias=False)
        nn.init.normal_(self.table.weight, std=0.1)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.table(tokens))
        return logits


def embedding_scaled_by_frequency() -> World:
    """Bags of words that are classified, with `scale_grad_by_freq`; there are only a few different words."""
    model = Bags()
    limits = torch.tensor([4, 4, 4, 4, 6, 6, 6, 6])
    batches = [
        {"input_ids": (torch.rand(ITEMS, 3) * limits[:, None]).long(), "y": torch.randint(4, (ITEMS,))}
        for _ in range(STEPS)
    ]
    return world(model, batches, lambda b: F.cross_entropy(model(b["input_ids"]), b["y"]))
