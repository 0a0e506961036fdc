"""The workloads on which roles are measured: `python workloads.py NAME` trains one for three steps.

Every fourth in the order of this file is held out: the rules of `ullage.explaining.analysis.role` were made while
looking at the others alone.
"""

import copy
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

STEPS = 3
CARD = "cuda"
WORKLOADS: dict[str, Callable[[], None]] = {}


def workload(function: Callable[[], None]) -> Callable[[], None]:
    """Enter a workload under its function's name."""
    WORKLOADS[function.__name__] = function
    return function


def held_out() -> list[str]:
    """The names of the workloads that the rules were not made on."""
    return list(WORKLOADS)[3::4]


def train(model: nn.Module, optimizer: torch.optim.Optimizer, loss_of: Callable[[nn.Module], Any]) -> None:
    """The loop that most of the scripts of others have."""
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        optimizer.step()


def mlp(width: int = 1024, depth: int = 4) -> nn.Sequential:
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def classify(batch: int, *shape: int, classes: int = 10) -> Callable[[nn.Module], Any]:
    """A loss of random inputs that come from the host, as a data loader's do."""

    def loss_of(model: nn.Module) -> Any:
        inputs = torch.randn(batch, *shape).to(CARD)
        labels = torch.randint(classes, (batch,)).to(CARD)
        return functional.cross_entropy(model(inputs), labels)

    return loss_of


def tokens(batch: int = 8, length: int = 128, vocabulary: int = 1000) -> torch.Tensor:
    return torch.randint(vocabulary, (batch, length)).to(CARD)


def language_model(name: str) -> nn.Module:
    """A small model of transformers, made from its configuration: nothing is downloaded."""
    import transformers

    small = {
        "gpt2": {"vocab_size": 1000, "n_embd": 256, "n_layer": 4, "n_head": 4},
        "t5": {
            "vocab_size": 1000,
            "decoder_start_token_id": 0,
            "d_model": 256,
            "num_layers": 3,
            "num_heads": 4,
            "d_ff": 1024,
            "d_kv": 64,
        },
    }
    common = {
        "vocab_size": 1000,
        "hidden_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "intermediate_size": 1024,
    }
    config = transformers.AutoConfig.for_model(name, **small.get(name, common))
    kind = transformers.AutoModelForSeq2SeqLM if name == "t5" else transformers.AutoModelForCausalLM
    if name == "bert":
        kind = transformers.AutoModelForMaskedLM
    return kind.from_config(config)


def language_loss(model: nn.Module) -> Any:
    ids = tokens()
    return model(input_ids=ids, labels=ids).loss


# ---- plain layers and optimizers


@workload
def mlp_sgd() -> None:
    model = mlp().to(CARD)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), classify(256, 1024))


@workload
def mlp_momentum_wide() -> None:
    model = mlp(2048, 3).cuda()
    train(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), classify(4096, 2048))


@workload
def mlp_adam_for_loop() -> None:
    model = mlp().to(CARD)
    train(model, torch.optim.Adam(model.parameters(), foreach=False), classify(512, 1024))


@workload
def mlp_adamw_fused() -> None:
    model = mlp().to(CARD)
    train(model, torch.optim.AdamW(model.parameters(), fused=True), classify(1024, 1024))


@workload
def mlp_made_on_the_card() -> None:
    with torch.device(CARD):
        model = mlp(1024, 6)
    train(model, torch.optim.AdamW(model.parameters(), foreach=True), classify(2048, 1024))


@workload
def mlp_without_modules() -> None:
    weights = [torch.randn(1024, 1024, device=CARD, requires_grad=True) for _ in range(5)]
    optimizer = torch.optim.Adam(weights)
    for _ in range(STEPS):
        hidden = torch.randn(1024, 1024, device=CARD)
        for weight in weights:
            hidden = torch.relu(hidden @ weight)
        loss = hidden.square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@workload
def adafactor() -> None:
    model = mlp(1536, 4).to(CARD)
    train(model, torch.optim.Adafactor(model.parameters()), classify(1024, 1536))


class EightBitAdam(torch.optim.Optimizer):
    """An optimizer of somebody's own: moments as bytes, with a scale for each."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__(parameters, {"lr": 1e-3})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["first"] = torch.zeros_like(parameter, dtype=torch.int8)
                    state["second"] = torch.zeros_like(parameter, dtype=torch.uint8)
                    state["scale"] = torch.ones(2, device=parameter.device)
                first = state["first"].float() * state["scale"][0] * 0.9 + parameter.grad * 0.1
                second = state["second"].float() * state["scale"][1] * 0.99 + parameter.grad.square() * 0.01
                state["first"].copy_(first)
                state["second"].copy_(second)
                parameter.addcdiv_(first, second.sqrt_().add_(1e-8), value=-group["lr"])


@workload
def eight_bit_adam() -> None:
    model = mlp(2048, 3).to(CARD)
    train(model, EightBitAdam(model.parameters()), classify(512, 2048))


@workload
def gradient_accumulation() -> None:
    model = mlp().to(CARD)
    optimizer = torch.optim.AdamW(model.parameters())
    loss_of = classify(2048, 1024)
    for _ in range(STEPS):
        for _ in range(4):
            (loss_of(model) / 4).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


@workload
def gradients_kept_as_zeros() -> None:
    model = mlp().to(CARD)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_of = classify(2048, 1024)
    for _ in range(STEPS):
        loss_of(model).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)


# ---- pictures


class SmallCnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)),
            nn.Conv2d(64, 128, 3, padding=1),
            nn.ReLU(),
        )
        self.head = nn.Linear(128, 10)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(pictures).mean((2, 3)))


@workload
def cnn_sgd() -> None:
    model = SmallCnn().to(CARD)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), classify(64, 3, 64, 64))


@workload
def cnn_channels_last_amp() -> None:
    model = SmallCnn().to(CARD, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler(CARD)
    for _ in range(STEPS):
        pictures = torch.randn(64, 3, 96, 96).to(CARD, memory_format=torch.channels_last)
        labels = torch.randint(10, (64,)).to(CARD)
        with torch.autocast(CARD, torch.float16):
            loss = functional.cross_entropy(model(pictures), labels)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


@workload
def resnet18() -> None:
    from torchvision.models import resnet18 as make

    model = make().to(CARD)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), classify(16, 3, 128, 128))


@workload
def resnet50_adamw() -> None:
    from torchvision.models import resnet50

    model = resnet50().to(CARD)
    train(model, torch.optim.AdamW(model.parameters()), classify(8, 3, 128, 128))


class UNet(nn.Module):
    """Down and up again, with what was on the way down joined in."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 64, 3, padding=1)])
        self.middle = nn.Conv2d(64, 64, 3, padding=1)
        self.up = nn.ModuleList([nn.Conv2d(128, 32, 3, padding=1), nn.Conv2d(64, 16, 3, padding=1)])
        self.out = nn.Conv2d(16, 3, 1)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        kept = []
        for layer in self.down:
            pictures = functional.silu(layer(pictures))
            kept.append(pictures)
            pictures = functional.avg_pool2d(pictures, 2)
        pictures = functional.silu(self.middle(pictures))
        for layer in self.up:
            pictures = functional.interpolate(pictures, scale_factor=2)
            pictures = functional.silu(layer(torch.cat([pictures, kept.pop()], 1)))
        return self.out(pictures)


@workload
def diffusion_unet_ema() -> None:
    model = UNet().to(CARD)
    average = copy.deepcopy(model).requires_grad_(requires_grad=False)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(STEPS):
        pictures = torch.randn(8, 3, 64, 64).to(CARD)
        noise = torch.randn_like(pictures)
        loss = functional.mse_loss(model(pictures + noise), noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for kept, new in zip(average.parameters(), model.parameters(), strict=True):
                kept.lerp_(new, 0.01)


@workload
def gan() -> None:
    generator = nn.Sequential(nn.Linear(128, 1024), nn.ReLU(), nn.Linear(1024, 3072), nn.Tanh()).to(CARD)
    critic = nn.Sequential(nn.Linear(3072, 1024), nn.LeakyReLU(0.2), nn.Linear(1024, 1)).to(CARD)
    first = torch.optim.Adam(critic.parameters())
    second = torch.optim.Adam(generator.parameters())
    for _ in range(STEPS):
        real = torch.randn(1024, 3072).to(CARD)
        fake = generator(torch.randn(1024, 128, device=CARD))
        first.zero_grad()
        judged, seen = critic(fake.detach()), critic(real)
        (functional.softplus(judged).mean() + functional.softplus(-seen).mean()).backward()
        first.step()
        second.zero_grad()
        functional.softplus(-critic(fake)).mean().backward()
        second.step()


@workload
def vit() -> None:
    from torchvision.models import VisionTransformer

    model = VisionTransformer(
        image_size=64, patch_size=8, num_layers=4, num_heads=4, hidden_dim=256, mlp_dim=1024, num_classes=10
    ).to(CARD)
    train(model, torch.optim.AdamW(model.parameters()), classify(64, 3, 64, 64))


@workload
def autoencoder_double_backward() -> None:
    model = nn.Sequential(nn.Linear(784, 512), nn.Softplus(), nn.Linear(512, 784)).to(CARD)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(STEPS):
        inputs = torch.randn(2048, 784).to(CARD).requires_grad_()
        output = model(inputs)
        (slope,) = torch.autograd.grad(output.sum(), inputs, create_graph=True)
        loss = functional.mse_loss(output, inputs.detach()) + slope.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


# ---- sequences


class LstmTagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5000, 256)
        self.lstm = nn.LSTM(256, 512, num_layers=2, batch_first=True)
        self.head = nn.Linear(512, 50)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(self.embedding(ids))[0])


@workload
def lstm() -> None:
    model = LstmTagger().to(CARD)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(STEPS):
        ids, labels = tokens(32, 64, 5000), tokens(32, 64, 50)
        loss = functional.cross_entropy(model(ids).flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@workload
def torch_transformer() -> None:
    layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
    model = nn.Sequential(nn.TransformerEncoder(layer, 4), nn.Flatten(), nn.Linear(64 * 256, 10)).to(CARD)
    train(model, torch.optim.AdamW(model.parameters()), classify(32, 64, 256))


@workload
def bert() -> None:
    model = language_model("bert").to(CARD)
    train(model, torch.optim.AdamW(model.parameters()), language_loss)


@workload
def gpt2() -> None:
    model = language_model("gpt2").to(CARD)
    train(model, torch.optim.AdamW(model.parameters()), language_loss)


@workload
def llama() -> None:
    model = language_model("llama").to(CARD)
    train(model, torch.optim.AdamW(model.parameters()), language_loss)


@workload
def llama_bf16_checkpointed() -> None:
    model = language_model("llama").to(CARD, torch.bfloat16)
    model.gradient_checkpointing_enable()
    train(model.train(), torch.optim.AdamW(model.parameters()), language_loss)


@workload
def t5_autocast() -> None:
    model = language_model("t5").to(CARD)

    def loss_of(model: nn.Module) -> Any:
        with torch.autocast(CARD, torch.bfloat16):
            return language_loss(model)

    train(model, torch.optim.AdamW(model.parameters()), loss_of)


class Lora(nn.Module):
    """A frozen layer with two small ones beside it."""

    def __init__(self, base: nn.Linear, rank: int = 8) -> None:
        super().__init__()
        self.base = base.requires_grad_(requires_grad=False)
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.base(inputs) + self.up(self.down(inputs))


@workload
def lora_by_hand() -> None:
    model = mlp(2048, 6)
    for index, layer in enumerate(model):
        if isinstance(layer, nn.Linear) and layer.out_features > 10:
            model[index] = Lora(layer)
    model.to(CARD)
    chosen = [parameter for parameter in model.parameters() if parameter.requires_grad]
    train(model, torch.optim.AdamW(chosen), classify(1024, 2048))


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.first, self.second = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs + self.second(functional.gelu(self.first(self.norm(inputs))))


class Checkpointed(nn.Module):
    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(512) for _ in range(6))
        self.head = nn.Linear(512, 10)
        self.reentrant = reentrant

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = inputs.requires_grad_()
        for block in self.blocks:
            hidden = checkpoint(block, hidden, use_reentrant=self.reentrant)
        return self.head(hidden)


@workload
def checkpointed() -> None:
    model = Checkpointed(reentrant=False).to(CARD)
    train(model, torch.optim.AdamW(model.parameters()), classify(4096, 512))


@workload
def checkpointed_reentrant() -> None:
    model = Checkpointed(reentrant=True).to(CARD)
    train(model, torch.optim.AdamW(model.parameters()), classify(4096, 512))


class Square(torch.autograd.Function):
    """A function with a backward of its own."""

    @staticmethod
    def forward(context: Any, inputs: torch.Tensor) -> torch.Tensor:
        context.save_for_backward(inputs)
        return inputs.square()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        (inputs,) = context.saved_tensors
        return 2 * inputs * gradient


class Squares(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(1024, 1024) for _ in range(4))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            inputs = Square.apply(layer(inputs))
        return inputs


@workload
def own_function() -> None:
    model = Squares().to(CARD)
    train(model, torch.optim.Adam(model.parameters()), classify(2048, 1024))


@workload
def autocast_bf16() -> None:
    model = mlp(2048, 4).to(CARD)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(STEPS):
        inputs, labels = torch.randn(2048, 2048).to(CARD), torch.randint(10, (2048,)).to(CARD)
        with torch.autocast(CARD, torch.bfloat16):
            loss = functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@workload
def lbfgs() -> None:
    model = mlp(512, 3).to(CARD)
    inputs, labels = torch.randn(1024, 512).to(CARD), torch.randint(10, (1024,)).to(CARD)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(inputs), labels)
        loss.backward()
        return loss

    for _ in range(STEPS):
        optimizer.step(closure)


@workload
def optimizer_in_backward() -> None:
    model = mlp(1024, 6).to(CARD)
    for parameter in model.parameters():
        optimizer = torch.optim.AdamW([parameter])

        def update(parameter: torch.Tensor, optimizer: torch.optim.Optimizer = optimizer) -> None:
            optimizer.step()
            optimizer.zero_grad()

        parameter.register_post_accumulate_grad_hook(update)
    loss_of = classify(1024, 1024)
    for _ in range(STEPS):
        loss_of(model).backward()


# ---- compiled, several cards, no training


@workload
def compiled_eager() -> None:
    model = mlp().to(CARD)
    compiled = torch.compile(model, backend="eager")
    train(compiled, torch.optim.Adam(model.parameters()), classify(1024, 1024))


@workload
def compiled_aot_eager() -> None:
    model = SmallCnn().to(CARD)
    compiled = torch.compile(model, backend="aot_eager")
    train(compiled, torch.optim.AdamW(model.parameters()), classify(64, 3, 64, 64))


def one_rank() -> None:
    """A group of one process."""
    import torch.distributed as dist

    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    dist.init_process_group("nccl", rank=0, world_size=1, store=dist.HashStore())


@workload
def ddp_one_rank() -> None:
    one_rank()
    model = nn.parallel.DistributedDataParallel(mlp().to(CARD))
    train(model, torch.optim.AdamW(model.parameters()), classify(1024, 1024))


@workload
def fsdp2_one_rank() -> None:
    from torch.distributed.fsdp import fully_shard

    one_rank()
    model = mlp(1024, 4).to(CARD)
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(model)
    train(model, torch.optim.AdamW(model.parameters()), classify(1024, 1024))


@workload
def inference_mlp() -> None:
    model = mlp(2048, 6).to(CARD).eval()
    for _ in range(STEPS):
        with torch.inference_mode():
            model(torch.randn(4096, 2048).to(CARD)).argmax(-1).cpu()


@workload
def inference_llama_cache() -> None:
    model = language_model("llama").to(CARD, torch.bfloat16).eval()
    cache, ids = None, tokens(8, 512)
    with torch.no_grad():
        for _ in range(8):
            answer = model(input_ids=ids, past_key_values=cache, use_cache=True)
            cache, ids = answer.past_key_values, answer.logits[:, -1:].argmax(-1)


@workload
def inference_resnet() -> None:
    from torchvision.models import resnet18 as make

    model = make().to(CARD).eval()
    with torch.no_grad():
        for _ in range(STEPS):
            model(torch.randn(32, 3, 224, 224).to(CARD)).softmax(-1).max().item()


@workload
def evaluation_between_steps() -> None:
    model = mlp().to(CARD)
    optimizer = torch.optim.AdamW(model.parameters())
    losses = []
    for _ in range(STEPS):
        loss = classify(512, 1024)(model)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
        model.eval()
        with torch.no_grad():
            classify(8192, 1024)(model)
        model.train()


if __name__ == "__main__":
    WORKLOADS[sys.argv[1]]()
