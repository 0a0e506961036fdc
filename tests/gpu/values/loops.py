"""Training loops that are run on an emulated card and on the CPU: each returns its losses."""

from collections.abc import Callable, Iterator

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

STEPS = 20


def mlp(device: str, *, steps: int = STEPS, **options: bool) -> Iterator[float]:
    """Yield the losses of a perceptron with AdamW, with dropout, its data drawn on the device."""
    torch.manual_seed(1)
    model = nn.Sequential(
        *(nn.Linear(32, 64, device=device), nn.GELU(), nn.Dropout(0.2), nn.LayerNorm(64, device=device)),
        nn.Linear(64, 10, device=device),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, **options)
    numbers = torch.randn(48, 32, device=device)
    labels = torch.randint(10, (48,), device=device)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(numbers), labels)
        loss.backward()
        optimizer.step()
        yield loss.item()


def mlp_fused(device: str) -> Iterator[float]:
    """Yield the losses of the perceptron with the fused AdamW."""
    return mlp(device, fused=True)


def mlp_foreach(device: str) -> Iterator[float]:
    """Yield the losses of the perceptron with the AdamW over lists of tensors."""
    return mlp(device, foreach=True)


def cnn(device: str) -> Iterator[float]:
    """Yield the losses of a convolutional network with batch normalisation, and SGD with momentum."""
    torch.manual_seed(2)
    model = nn.Sequential(
        *(nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 16, 3, groups=2), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        nn.Linear(16, 5),
    ).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4, nesterov=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    images = torch.randn(8, 3, 24, 24).to(device)
    labels = torch.randint(5, (8,)).to(device)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        schedule.step()
        yield float(loss)
    model.eval()
    with torch.no_grad():
        yield float(functional.cross_entropy(model(images), labels))


def gpt(device: str, *, is_checkpointed: bool = False) -> Iterator[float]:
    """Yield the losses of a small GPT-2 of transformers with AdamW and clipped gradients, with dropout."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(3)
    config = GPT2Config(vocab_size=97, n_positions=32, n_embd=32, n_layer=2, n_head=4)
    model = GPT2LMHeadModel(config).to(device).train()
    if is_checkpointed:
        model.gradient_checkpointing_enable()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    tokens = torch.randint(97, (4, 32)).to(device)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model(tokens, labels=tokens).loss
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        yield loss.item()
    yield norm.item()


def gpt_checkpointed(device: str) -> Iterator[float]:
    """Yield the losses of the GPT-2 with its blocks recomputed: dropout draws the same again."""
    return gpt(device, is_checkpointed=True)


def attention(device: str) -> Iterator[float]:
    """Yield the losses of a transformer layer of PyTorch's own with causal attention and a recomputed feed-forward."""
    torch.manual_seed(4)
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True, norm_first=True, device=device)
    head = nn.Sequential(nn.Linear(32, 32), nn.Dropout(0.3), nn.Tanh(), nn.Linear(32, 1)).to(device)
    parameters = [*layer.parameters(), *head.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=1e-3, amsgrad=True)
    numbers = torch.randn(3, 12, 32, device=device)
    mask = nn.Transformer.generate_square_subsequent_mask(12, device=device)
    for _ in range(STEPS):
        optimizer.zero_grad()
        hidden = layer(numbers, src_mask=mask, is_causal=True)
        query = hidden.view(3, 12, 4, 8).transpose(1, 2)
        hidden = functional.scaled_dot_product_attention(query, query, query, is_causal=True).transpose(1, 2)
        loss = checkpoint(head, hidden.reshape(3, 12, 32), use_reentrant=False).pow(2).mean()
        loss.backward()
        optimizer.step()
        yield loss.item()


def recurrent(device: str) -> Iterator[float]:
    """Yield the losses of an LSTM over packed sequences and a GRU of two directions, on cuDNN's operators on a card."""
    torch.manual_seed(5)
    embedding = nn.Embedding(50, 16, padding_idx=0).to(device)
    lstm = nn.LSTM(16, 24, num_layers=2, batch_first=True).to(device)
    gru = nn.GRU(24, 12, bidirectional=True, batch_first=True).to(device)
    head = nn.Linear(24, 50).to(device)
    layers = nn.ModuleList([embedding, lstm, gru, head])
    optimizer = torch.optim.RMSprop(layers.parameters(), lr=1e-3)
    tokens = torch.randint(1, 50, (4, 9)).to(device)
    lengths = torch.tensor([9, 7, 4, 2])
    for _ in range(STEPS):
        optimizer.zero_grad()
        packed = nn.utils.rnn.pack_padded_sequence(embedding(tokens), lengths, batch_first=True)
        hidden, _ = nn.utils.rnn.pad_packed_sequence(lstm(packed)[0], batch_first=True)
        loss = functional.cross_entropy(head(gru(hidden)[0]).flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        yield loss.item()


def scaled(device: str) -> Iterator[float]:
    """Yield the losses of mixed precision with a gradient scaler whose first steps overflow, and its scale."""
    torch.manual_seed(6)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**40, growth_interval=4)
    numbers, labels = torch.randn(32, 16).to(device), torch.randint(4, (32,)).to(device)
    for _ in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast(device, torch.float16):
            scores = model(numbers)
            loss = functional.cross_entropy(scores, labels) + scores.softmax(-1).pow(2).mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        yield loss.item()
        yield scaler.get_scale()


def routed(device: str) -> Iterator[float]:
    """Yield the losses of a mixture of experts, whose tokens' way depends on its router's scores."""
    torch.manual_seed(7)
    router = nn.Linear(16, 4).to(device)
    experts = nn.ModuleList([nn.Linear(16, 16) for _ in range(4)]).to(device)
    optimizer = torch.optim.SGD([*router.parameters(), *experts.parameters()], lr=0.5)
    tokens = torch.randn(64, 16).to(device)
    for _ in range(STEPS):
        optimizer.zero_grad()
        weights, chosen = router(tokens).softmax(-1).topk(2)
        out = torch.zeros_like(tokens)
        for number, expert in enumerate(experts):
            where, slot = (chosen == number).nonzero(as_tuple=True)
            out.index_add_(0, where, expert(tokens[where]) * weights[where, slot, None])
        loss = (out - tokens.roll(1, 0)).pow(2).mean()
        loss.backward()
        optimizer.step()
        yield loss.item()
        yield float(torch.bincount(chosen.flatten(), minlength=4).max())


LOOPS: tuple[Callable[[str], Iterator[float]], ...] = (
    *(mlp, mlp_fused, mlp_foreach, cnn, gpt, gpt_checkpointed, attention, recurrent, scaled, routed),
)
