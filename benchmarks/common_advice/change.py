"""What advices change about a loop: its step, its model, its optimizer, and what is done after it."""

from collections.abc import Callable
from typing import Any

from benchmarks.common_advice.loop import Loop, plain

Step = Callable[[Loop, Any], None]


def in_parts(parts: int) -> Step:
    def step(loop: Loop, tokens: Any) -> None:
        for part in tokens.chunk(parts):
            loop.forward(part)
            (loop.loss / parts).backward()
        loop.update()

    return step


def zeroed_late(loop: Loop, tokens: Any) -> None:
    """Set gradients to None right before backward, as many tutorials do."""
    loop.forward(tokens)
    loop.optimizer.zero_grad()
    loop.loss.backward()
    loop.optimizer.step()


def summed(loop: Loop, tokens: Any) -> None:
    plain(loop, tokens)
    loop.kept = loop.loss if loop.kept is None else loop.kept + loop.loss


def loss_on_host(loop: Loop, tokens: Any) -> None:
    """Move the loss to the host, and expect that backward leaves the card."""
    loop.forward(tokens)
    loop.loss.cpu().backward()
    loop.update()


def deleted_before_update(loop: Loop, tokens: Any) -> None:
    loop.forward(tokens)
    loop.loss.backward()
    loop.output = loop.loss = None
    loop.update()


def stepping_in_backward(loop: Loop, tokens: Any) -> None:
    """Update each parameter as soon as its gradient is there, and give the gradient up."""
    import torch

    if loop.kept is None:
        loop.kept = {p: torch.optim.AdamW([p]) for p in loop.model.parameters()}

        def update(parameter: Any) -> None:
            loop.kept[parameter].step()
            loop.kept[parameter].zero_grad()

        for parameter in loop.model.parameters():
            parameter.register_post_accumulate_grad_hook(update)
    loop.forward(tokens)
    loop.loss.backward()


def loss_in_parts(loop: Loop, tokens: Any) -> None:
    """Compute logits and loss for some items at a time, and again in backward."""
    import torch
    import torch.nn.functional as F
    from torch.utils.checkpoint import checkpoint

    model = loop.model

    def loss_of(x: Any, target: Any) -> Any:
        return F.cross_entropy(model.head(x).flatten(0, 1), target.flatten(), reduction="sum")

    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    with loop.casting():
        x = model.tokens(inputs) + model.positions(torch.arange(inputs.shape[1], device=inputs.device))
        for block in model.blocks:
            x = block(x)
        x = model.norm(x)
        parts = zip(x.split(1), targets.split(1), strict=True)
        loop.loss = sum(checkpoint(loss_of, *part, use_reentrant=False) for part in parts) / targets.numel()
    loop.loss.backward()
    loop.update()


def workers_and_pinned(loop: Loop, tokens: Any) -> None:
    """Load by two worker processes, into pinned memory."""
    import torch

    if loop.kept is None:
        data = torch.zeros(1000 * loop.items, tokens.shape[1], dtype=torch.long)
        loader = torch.utils.data.DataLoader(data, loop.items, num_workers=2, pin_memory=True)
        loop.kept = iter(loader)
    plain(loop, next(loop.kept).to("cuda", non_blocking=True))


def all_data_on_card(loop: Loop, tokens: Any) -> None:
    """Have the whole data set on the card: 50,000 pictures of 32 x 32 pixels, as floats."""
    import torch

    if loop.kept is None:
        loop.kept = torch.zeros(50_000, 3, 32, 32, device="cuda")
    plain(loop, tokens)


def on_host() -> Any:
    import torch

    return torch.autograd.graph.save_on_cpu(pin_memory=True)


def attention_by_hand() -> Any:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    return sdpa_kernel(SDPBackend.MATH)


def frozen(model: Any) -> Any:
    """Train the upper half of the blocks alone."""
    for module in (model.tokens, model.positions, *model.blocks[: len(model.blocks) // 2]):
        module.requires_grad_(requires_grad=False)
    return model


def channels_last(model: Any) -> Any:
    import torch

    return model.to(memory_format=torch.channels_last)


def with_benchmark(model: Any) -> Any:
    import torch

    torch.backends.cudnn.benchmark = True
    return model


def not_in_place(model: Any) -> Any:
    for module in model.modules():
        if type(module).__name__ == "ReLU":
            module.inplace = False
    return model


def compiled(model: Any) -> Any:
    import torch

    return torch.compile(model)


def optimizer(name: str, **options: Any) -> Callable[[Any], Any]:
    def make(parameters: Any) -> Any:
        import torch

        return getattr(torch.optim, name)(parameters, lr=1e-3, **options)

    return make


def model_gone(loop: Loop) -> None:
    loop.model = None
    collected()


def optimizer_gone(loop: Loop) -> None:
    loop.optimizer = None
    model_gone(loop)


def detached(loop: Loop) -> None:
    """Detach the parameters first, as a guide says."""
    import torch

    with torch.no_grad():
        for parameter in loop.model.parameters():
            parameter.detach_()
    optimizer_gone(loop)


def all_gone(loop: Loop) -> None:
    loop.output = loop.loss = None
    optimizer_gone(loop)


def released(loop: Loop) -> None:
    import ullage

    ullage.release(loop.model, loop.optimizer, loop.output, loop.loss)


def moved_to_host(loop: Loop) -> None:
    loop.model.cpu()
    collected()


def collected() -> None:
    import gc

    import torch

    gc.collect()
    torch.cuda.empty_cache()
