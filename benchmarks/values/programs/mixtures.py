"""Programs in which tokens are routed to experts."""

import torch
from programs.registry import STEPS, Note, experts, program, trained
from torch import nn


@program
def moe_where(device: str, note: Note) -> None:
    """Route by `topk`, pick the tokens of each expert by `where`, add with `index_add`."""
    width, count, tokens = 128, 8, 4096
    gate = nn.Linear(width, count).to(device)
    layers = experts(width, count).to(device)
    optimizer = torch.optim.AdamW([*gate.parameters(), *layers.parameters()], 1e-3)
    for _ in range(STEPS):
        hidden = torch.randn(tokens, width, device=device)
        weights, chosen = gate(hidden).softmax(-1).topk(2)
        result = torch.zeros_like(hidden)
        for number, layer in enumerate(layers):
            token, slot = torch.where(chosen == number)
            note("rows", token.numel())
            result = result.index_add(0, token, layer(hidden[token]) * weights[token, slot, None])
        result.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def moe_split(device: str, note: Note) -> None:
    """Route by `argmax`, sort the tokens, and split them by counts read back."""
    width, count, tokens = 256, 8, 4096
    gate = nn.Linear(width, count).to(device)
    layers = experts(width, count).to(device)
    optimizer = torch.optim.AdamW([*gate.parameters(), *layers.parameters()], 1e-3)
    for _ in range(STEPS):
        hidden = torch.randn(tokens, width, device=device)
        scores = gate(hidden)
        chosen = scores.argmax(-1)
        order = chosen.argsort()
        counts = torch.bincount(chosen, minlength=count).tolist()
        for each in counts:
            note("rows", each)
        parts = hidden[order].split(counts)
        result = torch.cat([layer(part) for layer, part in zip(layers, parts, strict=True)])
        (result.square().mean() + scores.logsumexp(-1).mean()).backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def moe_capacity(device: str, note: Note) -> None:
    """Route with a capacity: what an expert has no room for is dropped, and passed on as it is."""
    width, count, tokens = 128, 16, 4096
    gate = nn.Linear(width, count).to(device)
    layers = experts(width, count).to(device)
    optimizer = torch.optim.AdamW([*gate.parameters(), *layers.parameters()], 1e-3)
    capacity = tokens // count
    for _ in range(STEPS):
        hidden = torch.randn(tokens, width, device=device)
        weight, chosen = gate(hidden).softmax(-1).max(-1)
        places = nn.functional.one_hot(chosen, count).cumsum(0).gather(1, chosen[:, None])[:, 0]
        keep = places <= capacity
        result = hidden.clone()
        for number, layer in enumerate(layers):
            token = (keep & (chosen == number)).nonzero()[:, 0]
            note("rows", token.numel())
            result = result.index_add(0, token, layer(hidden[token]) * weight[token, None])
        dropped = hidden[~keep]
        note("dropped", len(dropped))
        (result.square().mean() + dropped.mean()).backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def moe_padded(device: str, note: Note) -> None:
    """Give each expert as many rows as the one with the most has: all experts are one batched product."""
    width, count, tokens = 256, 8, 4096
    gate = nn.Linear(width, count).to(device)
    first = nn.Parameter(torch.randn(count, width, 2 * width).mul_(0.05).to(device))
    second = nn.Parameter(torch.randn(count, 2 * width, width).mul_(0.05).to(device))
    optimizer = torch.optim.AdamW([*gate.parameters(), first, second], 1e-3)
    for _ in range(STEPS):
        hidden = torch.randn(tokens, width, device=device)
        weight, chosen = gate(hidden).softmax(-1).max(-1)
        ones = nn.functional.one_hot(chosen, count)
        places = (ones.cumsum(0) - 1).gather(1, chosen[:, None])[:, 0]
        most = int(ones.sum(0).max().item())
        note("rows", most)
        rows = hidden.new_zeros(count, most, width).index_put((chosen, places), hidden)
        rows = torch.bmm(nn.functional.gelu(torch.bmm(rows, first)), second)
        result = rows[chosen, places] * weight[:, None]
        result.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def _language_model(model: nn.Module, device: str, note: Note, *, vocabulary: int, rows: int, length: int) -> None:
    for module in model.modules():
        if module.__class__.__name__.endswith("MLP"):
            module.register_forward_pre_hook(lambda _, inputs: note("rows", inputs[0].numel() // inputs[0].shape[-1]))
    model, optimizer = trained(model.to(device).train())
    for _ in range(2):
        ids = torch.randint(3, vocabulary, (rows, length)).to(device)
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def mixtral(device: str, note: Note) -> None:
    """Train a small Mixtral of transformers."""
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        vocab_size=1000,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=8,
        num_experts_per_tok=2,
        output_router_logits=True,
    )
    _language_model(MixtralForCausalLM(config), device, note, vocabulary=1000, rows=4, length=256)


@program
def qwen2_moe(device: str, note: Note) -> None:
    """Train a small Qwen2-MoE of transformers."""
    from transformers import Qwen2MoeConfig, Qwen2MoeForCausalLM

    config = Qwen2MoeConfig(
        vocab_size=1000,
        hidden_size=128,
        intermediate_size=256,
        moe_intermediate_size=128,
        shared_expert_intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_experts=16,
        num_experts_per_tok=4,
    )
    _language_model(Qwen2MoeForCausalLM(config), device, note, vocabulary=1000, rows=4, length=256)


@program
def capacity_of_two(device: str, note: Note) -> None:
    """Route by the two best experts after attention, each with room for its share only (GShard)."""
    width, count, tokens = 128, 8, 1024
    attend = nn.MultiheadAttention(width, 4, batch_first=True)
    norm, gate = nn.LayerNorm(width), nn.Linear(width, count, bias=False)
    layers = experts(width, count)
    table = nn.Embedding(1000, width)
    _, optimizer = trained(nn.ModuleList([attend, norm, gate, layers, table]).to(device))
    capacity = 2 * tokens // count
    for _ in range(STEPS):
        words = table(torch.randint(0, 1000, (4, 256)).to(device))
        hidden = (words + attend(words, words, words, need_weights=False)[0]).flatten(0, 1)
        weights, chosen = gate(norm(hidden)).softmax(-1).topk(2, -1)
        places = nn.functional.one_hot(chosen.T.flatten(), count).cumsum(0)
        place = places.gather(1, chosen.T.flatten()[:, None])[:, 0].view(2, -1).T
        keep = place <= capacity
        note("dropped", int((~keep).sum()))
        result = torch.zeros_like(hidden)
        for number, layer in enumerate(layers):
            token, slot = (keep & (chosen == number)).nonzero(as_tuple=True)
            note("rows", len(token))
            result = result.index_add(0, token, layer(hidden[token]) * weights[token, slot, None])
        (hidden + result).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def switch_transformer(device: str, note: Note) -> None:
    """Train a small Switch Transformer of transformers, whose experts drop what they have no room for."""
    from transformers import SwitchTransformersConfig, SwitchTransformersForConditionalGeneration

    model = SwitchTransformersForConditionalGeneration(
        SwitchTransformersConfig(
            vocab_size=1000,
            d_model=128,
            d_kv=32,
            d_ff=256,
            num_layers=4,
            num_decoder_layers=4,
            num_sparse_encoder_layers=2,
            num_sparse_decoder_layers=2,
            num_heads=4,
            num_experts=8,
            expert_capacity=128,
            decoder_start_token_id=0,
        )
    )
    for name, module in model.named_modules():
        if ".experts.expert_" in name and name.count(".") == name[: name.index(".experts.")].count(".") + 2:
            module.register_forward_pre_hook(lambda _, inputs: note("rows", inputs[0].numel() // inputs[0].shape[-1]))
    model, optimizer = trained(model.to(device).train())
    for _ in range(2):
        ids = torch.randint(3, 1000, (4, 256)).to(device)
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def group_limited(device: str, note: Note) -> None:
    """Choose two groups of experts for each token, then three experts within them (DeepSeek), after a deeper router."""
    width, count, groups, tokens = 128, 16, 4, 2048
    router = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, count)).to(device)
    layers = experts(width, count).to(device)
    _, optimizer = trained(nn.ModuleList([router, layers]))
    for _ in range(STEPS):
        hidden = torch.randn(tokens, width, device=device)
        scores = router(hidden).sigmoid()
        best = scores.view(tokens, groups, -1).topk(2, -1).values.sum(-1).topk(2, -1).indices
        allowed = torch.zeros(tokens, groups, device=device).scatter_(1, best, 1.0).bool()
        limited = scores.masked_fill(~allowed.repeat_interleave(count // groups, 1), 0.0)
        weights, chosen = limited.topk(3, -1)
        result = torch.zeros_like(hidden)
        for number, layer in enumerate(layers):
            token, slot = (chosen == number).nonzero(as_tuple=True)
            note("rows", len(token))
            result = result.index_add(0, token, layer(hidden[token]) * weights[token, slot, None])
        result.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def padded_blocks(device: str, note: Note) -> None:
    """Give each expert whole blocks of 64 rows (MegaBlocks), in a second layer after a first one."""
    width, count, tokens = 128, 8, 1024
    before = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width)).to(device)
    gate, layers = nn.Linear(width, count).to(device), experts(width, count).to(device)
    _, optimizer = trained(nn.ModuleList([before, gate, layers]))
    for _ in range(STEPS):
        hidden = before(torch.randn(tokens, width).to(device))
        weight, chosen = gate(hidden).softmax(-1).max(-1)
        counts = torch.bincount(chosen, minlength=count)
        rows = ((counts + 63) // 64 * 64).tolist()
        note("rows", sum(rows))
        order = chosen.argsort()
        parts = (hidden * weight[:, None])[order].split(counts.tolist())
        padded = [nn.functional.pad(part, (0, 0, 0, most - len(part))) for part, most in zip(parts, rows, strict=True)]
        results = torch.cat([layer(part) for layer, part in zip(layers, padded, strict=True)])
        results.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
