"""Is the choice of blocks to checkpoint as good as the best of all subsets? Every subset is run on an emulated card.

python benchmarks/advise/checkpoint_subsets.py [gpt2] [llama] [resnet]

For GPT-2 small, a Llama of 1B and ResNet-50, each at a small depth, every subset of the blocks is checkpointed and a
step is run: what it saves of the peak is measured, what it computes again is counted by PyTorch's counter. For one to
nine tenths of what can be saved, the search goes through the `choices` that what one run without a change has told
offers, by bisection as `ullage advise` does, to the mildest that saves enough; it is compared with the subset that
saves most of these bytes by operation.
"""

import functools
import itertools
import json
import sys

import ullage

ullage.emulate("H100")

import torch  # noqa: E402  the card has to be there before
import torch.nn.functional as F  # noqa: E402  the card has to be there before
from torch import nn  # noqa: E402  the card has to be there before
from torch.utils.checkpoint import checkpoint  # noqa: E402  the card has to be there before
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402  the card has to be there before

from ullage.predicting.changes.activations.block_choice import choices  # noqa: E402  the card has to be there before
from ullage.predicting.changes.training.model_structure import blocks_of  # noqa: E402  the card has to be there before

LEAST_WORTH = 0.97
NEARLY = 0.99
"""What counts as enough for the choice and for every subset: sizes differ by the allocator's rounding."""


class Attention(nn.Module):
    """One block: attention and a feed-forward network, gated where Llama's is."""

    def __init__(self, width, heads, inner, gated):
        super().__init__()
        norm = functools.partial(nn.RMSNorm if gated else nn.LayerNorm, width)
        self.heads, self.gated = heads, gated
        self.norm, self.mlp_norm = norm(), norm()
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, inner * (2 if gated else 1)), nn.Linear(inner, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(self.norm(x)).chunk(3, dim=-1)
        )
        x = x + self.project(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        y = self.up(self.mlp_norm(x))
        if self.gated:
            gate, y = y.chunk(2, dim=-1)
            y = F.silu(gate) * y
        else:
            y = F.gelu(y)
        return x + self.down(y)


class Language(nn.Module):
    def __init__(self, *, vocabulary, width, heads, inner, depth, gated):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Attention(width, heads, inner, gated) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), tokens.flatten())


class Bottleneck(nn.Module):
    def __init__(self, inside, width, stride):
        super().__init__()
        outside = 4 * width
        self.layers = nn.Sequential(
            nn.Conv2d(inside, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, outside, 1, bias=False),
            nn.BatchNorm2d(outside),
        )
        changes = inside != outside or stride > 1
        self.skip = (
            nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))
            if changes
            else nn.Identity()
        )

    def forward(self, x):
        return F.relu(self.layers(x) + self.skip(x))


class ResNet(nn.Module):
    """ResNet-50 with fewer blocks in each stage."""

    def __init__(self, counts):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True))
        inside = 64
        for stage, count in enumerate(counts):
            width, blocks = 64 * 2**stage, []
            for number in range(count):
                blocks.append(Bottleneck(inside, width, 2 if stage and not number else 1))
                inside = 4 * width
            setattr(self, f"layer{stage + 1}", nn.Sequential(*blocks))
        self.stages, self.head = len(counts), nn.Linear(inside, 1000)

    def forward(self, x):
        x = F.max_pool2d(self.stem(x), 3, 2, 1)
        for stage in range(self.stages):
            x = getattr(self, f"layer{stage + 1}")(x)
        return self.head(x.mean(dim=(2, 3))).logsumexp(dim=1).sum()


MODELS = {
    "gpt2": lambda: (
        Language(vocabulary=50257, width=768, heads=12, inner=3072, depth=5, gated=False),
        torch.randint(0, 50257, (4, 1024), device="cuda"),
    ),
    "llama": lambda: (
        Language(vocabulary=32000, width=2048, heads=32, inner=5632, depth=5, gated=True),
        torch.randint(0, 32000, (2, 2048), device="cuda"),
    ),
    "resnet": lambda: (ResNet((2, 2, 2, 1)), torch.randn(32, 3, 224, 224, device="cuda")),
}


def peak_of(model, batch):
    """The peak of a step whose gradients are there already, as in any step but the first."""
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    torch.cuda.reset_peak_memory_stats()
    model(batch).backward()
    return torch.cuda.max_memory_allocated()


def flops_of(model, batch, blocks):
    """The operations of each block's forward pass."""
    counter, found = FlopCounterMode(display=False), {}
    for number, block in enumerate(blocks):
        original = block.forward

        def counted(*arguments, original=original, number=number):
            before = counter.get_total_flops()
            output = original(*arguments)
            found[number] = counter.get_total_flops() - before
            return output

        block.forward = counted
    with counter, torch.no_grad():
        model(batch)
    for block in blocks:
        del block.forward
    return [found[number] for number in range(len(blocks))]


def saved_of(model, batch, blocks):
    """What each block keeps for the backward pass beside its output: what an unchanged run tells."""
    found = [0] * len(blocks)
    for number, block in enumerate(blocks):
        original = block.forward

        def measured(x, original=original, number=number):
            before = torch.cuda.memory_allocated()
            output = original(x)
            found[number] = torch.cuda.memory_allocated() - before - output.untyped_storage().nbytes()
            return output

        block.forward = measured
    model(batch)
    for block in blocks:
        del block.forward
    return found


def try_all(name):
    torch.manual_seed(0)
    model, batch = MODELS[name]()
    model.cuda()
    blocks = [block for each in blocks_of(model) for block in each.modules]
    flops, saved = flops_of(model, batch, blocks), saved_of(model, batch, blocks)
    peak_of(model, batch)  # cuBLAS takes its workspaces
    base = peak_of(model, batch)
    gains = {}
    for chosen in itertools.chain.from_iterable(
        itertools.combinations(range(len(blocks)), count) for count in range(1, len(blocks) + 1)
    ):
        for number in chosen:
            blocks[number].forward = functools.partial(checkpoint, blocks[number].forward, use_reentrant=False)
        gains[chosen] = base - peak_of(model, batch)
        for number in chosen:
            del blocks[number].forward
    rows = []
    for tenths in range(1, 10):
        needed = tenths * max(gains.values()) // 10
        chosen = mildest(choices(saved, flops), gains, NEARLY * needed)
        # What is saved beyond the need is worth nothing.
        worth = {
            each: min(gain, needed) / operations_of(each, flops)
            for each, gain in gains.items()
            if gain >= NEARLY * needed
        }
        best = max(worth, key=lambda each: worth[each])
        rows.append(
            {
                "model": name,
                "blocks": len(blocks),
                "subsets": len(gains),
                "needed_bytes": needed,
                "chosen": chosen,
                "saved_bytes": gains[chosen],
                "best": best,
                "worth": worth.get(chosen, 0.0) / worth[best],
            }
        )
    return rows


def mildest(offered, gains, least):
    """Return the first that saves enough, by bisection: as the search of `ullage advise` finds it."""
    low, high = 0, len(offered) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if gains[offered[middle]] >= least else (middle + 1, high)
    return offered[low]


def operations_of(chosen, flops):
    return sum(flops[number] for number in chosen)


def main():
    worth = []
    for name in sys.argv[1:] or MODELS:
        for row in try_all(name):
            print(json.dumps(row))
            worth.append(row["worth"])
    print(f"{len(worth)} choices, the worst saves {min(worth):.3f} of the best subset's bytes by operation")
    sys.exit(min(worth) < LEAST_WORTH)


if __name__ == "__main__":
    main()
