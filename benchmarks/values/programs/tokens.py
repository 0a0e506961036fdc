"""Programs in which tokens or samples leave on the way: pruning, merging, halting, early exits."""

from typing import Any

import torch
from programs.registry import STEPS, Note, program, trained
from torch import nn


class _Attention(nn.Module):
    """A block of a vision transformer that tells its attention, too."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project = nn.Linear(width, 3 * width)
        self.back = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        rows, length, width = x.shape
        parts = self.project(self.before(x)).view(rows, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        weights = (query @ key.transpose(-1, -2) / (width // self.heads) ** 0.5).softmax(-1)
        x = x + self.back((weights @ value).transpose(1, 2).reshape(rows, length, width))
        return x + self.mlp(self.between(x)), weights, key.mean(1)


def _patches(width: int, device: str) -> nn.Module:
    return nn.Conv2d(3, width, 8, 8).to(device)


@program
def token_pruning(device: str, note: Note) -> None:
    """Keep the patches that the first token attends to more than to the mean patch, of one picture at a time."""
    width = 96
    embed = _patches(width, device)
    blocks = nn.ModuleList(_Attention(width, 4) for _ in range(3)).to(device)
    first = nn.Parameter(torch.zeros(1, 1, width, device=device))
    head = nn.Linear(width, 10).to(device)
    optimizer = torch.optim.AdamW([*embed.parameters(), *blocks.parameters(), *head.parameters(), first], 1e-3)
    for _ in range(STEPS):
        x = embed(torch.rand(1, 3, 192, 192, device=device)).flatten(2).transpose(1, 2)
        x = torch.cat([first, x], 1)
        for block in blocks:
            x, weights, _ = block(x)
            attended = weights[0, :, 0, 1:].mean(0)
            keep = (attended > attended.mean()).nonzero()[:, 0] + 1
            note("kept", len(keep))
            x = torch.cat([x[:, :1], x[:, keep]], 1)
        head(x[:, 0]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def token_merging(device: str, note: Note) -> None:
    """Merge each token of one half into the most similar one of the other, where that is more similar than most."""
    width = 96
    embed = _patches(width, device)
    blocks = nn.ModuleList(_Attention(width, 4) for _ in range(3)).to(device)
    _, optimizer = trained(nn.ModuleList([embed, blocks]))
    for _ in range(STEPS):
        x = embed(torch.rand(1, 3, 192, 192, device=device)).flatten(2).transpose(1, 2)
        for block in blocks:
            x, _, key = block(x)
            metric = nn.functional.normalize(key[0].detach(), dim=-1)
            best, place = (metric[::2] @ metric[1::2].T).max(-1)
            merges = best > best.mean() + best.std() / 2
            source, target = x[0, ::2], x[0, 1::2]
            note("merged", int(merges.sum()))
            target = target.index_reduce(0, place[merges], source[merges], "mean")
            x = torch.cat([source[~merges], target])[None]
            note("left", x.shape[1])
        x.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def early_exits(device: str, note: Note) -> None:
    """Go on with those samples alone that a layer's own classifier is not sure of."""
    width, classes = 128, 4
    layers = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(4)).to(device)
    exits = nn.ModuleList(nn.Linear(width, classes) for _ in range(4)).to(device)
    _, optimizer = trained(nn.ModuleList([layers, exits]))
    for _ in range(STEPS):
        hidden = torch.randn(2048, width, device=device)
        loss = hidden.new_zeros(())
        for layer, leave in zip(layers, exits, strict=True):
            hidden = layer(hidden)
            scores = leave(hidden)
            loss = loss + scores.square().mean()
            unsure = scores.softmax(-1).amax(-1) < 0.3
            if not unsure.any():
                break
            hidden = hidden[unsure]
            note("gone on with", len(hidden))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def halting(device: str, note: Note) -> None:
    """Work on each token until what it has gathered says halt (adaptive computation time)."""
    width = 96
    cell = nn.GRUCell(width, width).to(device)
    halt = nn.Linear(width, 1).to(device)
    optimizer = torch.optim.AdamW([*cell.parameters(), *halt.parameters()], 1e-3)
    for _ in range(STEPS):
        given = torch.randn(1024, width, device=device)
        state, gathered = torch.zeros_like(given), torch.zeros(1024, device=device)
        rounds, loss = 0, given.new_zeros(())
        while True:
            running = (gathered < 0.99).nonzero()[:, 0]
            if not len(running) or rounds == 12:
                break
            note("running", len(running))
            after = cell(given[running], state[running])
            chance = halt(after).sigmoid()[:, 0]
            loss = loss + after.square().mean() + chance.mean()
            state = state.index_copy(0, running, after)
            gathered = gathered.index_add(0, running, chance.detach())
            rounds += 1
        note("rounds", rounds)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def skipped_layers(device: str, note: Note) -> None:
    """Let a router of each block choose which tokens pass it by (mixture of depths with a threshold)."""
    width = 128
    blocks = nn.ModuleList(
        nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        for _ in range(4)
    ).to(device)
    routers = nn.ModuleList(nn.Linear(width, 1) for _ in range(4)).to(device)
    _, optimizer = trained(nn.ModuleList([blocks, routers]))
    words = torch.randint(0, 500, (8, 256))
    table = nn.Embedding(500, width).to(device)
    for _ in range(STEPS):
        x: Any = table(words.to(device)).flatten(0, 1)
        for block, router in zip(blocks, routers, strict=True):
            score = router(x)[:, 0]
            chosen = (score > 0).nonzero()[:, 0]
            note("chosen", len(chosen))
            x = x.index_add(0, chosen, block(x[chosen]) * score[chosen, None].sigmoid())
        x.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def chunk_boundaries(device: str, note: Note) -> None:
    """Begin a chunk where neighbouring tokens are unlike, and go on with the first token of each (H-Net)."""
    width = 96
    table, query, key = nn.Embedding(300, width), nn.Linear(width, width), nn.Linear(width, width)
    mix, after = nn.Conv1d(width, width, 3, padding=1), nn.Linear(width, 4 * width)
    _, optimizer = trained(nn.ModuleList([table, query, key, mix, after]).to(device))
    for _ in range(STEPS):
        x = mix(table(torch.randint(0, 300, (4, 512)).to(device)).transpose(1, 2)).transpose(1, 2)
        likeness = nn.functional.cosine_similarity(query(x[:, 1:]), key(x[:, :-1]), dim=-1)
        starts = nn.functional.pad(likeness < 0, (1, 0), value=True)
        chunks = x[starts]
        note("chunks", len(chunks))
        note("longest", int(starts.sum(1).max()))
        after(chunks).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def attended_pairs(device: str, note: Note) -> None:
    """Work on the pairs of tokens alone whose attention is above three times the mean."""
    width, length = 64, 384
    table, project, pair = nn.Embedding(200, width), nn.Linear(width, 2 * width), nn.Linear(width, 32)
    _, optimizer = trained(nn.ModuleList([table, project, pair]).to(device))
    for _ in range(STEPS):
        query, key = project(table(torch.randint(0, 200, (length,)).to(device))).chunk(2, -1)
        weights = (query @ key.T).softmax(-1)
        left, right = (weights > 3 / length).nonzero(as_tuple=True)
        note("pairs", len(left))
        pair(query[left] * key[right]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def distinct_words(device: str, note: Note) -> None:
    """Work once on each word that a model has written, however often it is there (`unique`, and the way back)."""
    width, words = 128, 4000
    table, write, work = nn.Embedding(words, width), nn.Linear(width, words), nn.Linear(width, 64 * width)
    _, optimizer = trained(nn.ModuleList([table, write, work]).to(device))
    for _ in range(STEPS):
        with torch.no_grad():
            chances = (write(torch.randn(2048, width, device=device)) * 3).softmax(-1)
            written = chances.multinomial(1)[:, 0]
        distinct, back = written.unique(return_inverse=True)
        note("distinct", len(distinct))
        each = work(table(distinct))
        (each.square().mean() + each[:, :width][back].square().mean()).backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def unpadded(device: str, note: Note) -> None:
    """Take the padding out of a batch, and let each text attend to itself alone, by lengths counted on the GPU."""
    width, heads, rows, longest = 128, 4, 16, 256
    table, project, mlp = nn.Embedding(500, width), nn.Linear(width, 3 * width), nn.Linear(width, 4 * width)
    _, optimizer = trained(nn.ModuleList([table, project, mlp]).to(device))
    for _ in range(STEPS):
        lengths = torch.randint(16, longest + 1, (rows,))
        words = torch.randint(1, 500, (rows, longest)) * (torch.arange(longest) < lengths[:, None])
        words = words.to(device)
        mask = words != 0
        counts = mask.sum(-1)
        flat = table(words[mask])
        note("words", len(flat))
        note("longest", int(counts.max()))
        texts = project(flat).view(-1, 3, heads, width // heads).split(counts.tolist())
        attended = [
            nn.functional.scaled_dot_product_attention(*text.permute(1, 2, 0, 3)[:, None], is_causal=True)
            for text in texts
        ]
        joined = torch.cat([each[0].transpose(0, 1).flatten(1) for each in attended])
        mlp(flat + joined).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
