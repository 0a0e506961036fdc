"""Training workloads whose memory is recorded: `WORKLOADS[name](device)` builds one, `trainer.step(i)` trains one step.

The records hold every allocation to the byte, so what is allocated, in which order, and how long each local variable
keeps its tensor is part of a workload: a helper function that returns earlier than the code it replaces changes the
bytes. Values do not matter (on an emulated card they are all zero), so `build` leaves out the initial ones.

Also a script: `python workloads.py NAME [--steps 3] [--device cuda]`. Needs torch; some workloads need torchvision or
transformers.
"""

import argparse
import contextlib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

GPT2_VOCABULARY: Final = 50257

Batch = tuple[Any, ...]
MakeBatch = Callable[[str], Batch]
LossOf = Callable[..., Tensor]
MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


# ---- models


def mlp(inputs: int, hidden: int, depth: int, outputs: int) -> nn.Sequential:
    """Make `depth` hidden layers with ReLU, and a last layer without."""
    layers: list[nn.Module] = []
    width = inputs
    for _ in range(depth):
        layers += [nn.Linear(width, hidden), nn.ReLU()]
        width = hidden
    return nn.Sequential(*layers, nn.Linear(width, outputs))


@dataclass(frozen=True, kw_only=True)
class GptShape:
    """The dimensions of a GPT and what varies between the workloads."""

    width: int = 768
    layers: int = 12
    heads: int = 12
    context: int = 1024
    vocabulary: int = GPT2_VOCABULARY
    dropout: float = 0.0
    eager_attention: bool = False
    checkpointing: bool = False


class Block(nn.Module):
    """One transformer block, attention by `scaled_dot_product_attention`."""

    def __init__(self, shape: GptShape) -> None:
        super().__init__()
        width = shape.width
        self.heads = shape.heads
        self.dropout_rate = shape.dropout
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.attention_dropout, self.mlp_dropout = nn.Dropout(shape.dropout), nn.Dropout(shape.dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        query, key, value = self.projected(hidden)
        rate = self.dropout_rate if self.training else 0.0
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True, dropout_p=rate)
        return self.after_attention(hidden, attended)

    def projected(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return query, key and value, each (batch, heads, tokens, width of a head)."""
        batch, tokens, width = hidden.shape
        parts = self.query_key_value(self.attention_norm(hidden)).split(width, dim=2)
        query, key, value = (part.view(batch, tokens, self.heads, -1).transpose(1, 2) for part in parts)
        return query, key, value

    def after_attention(self, hidden: Tensor, attended: Tensor) -> Tensor:
        """Add attention and the two-layer network to the residual stream."""
        hidden = hidden + self.attention_dropout(
            self.projection(attended.transpose(1, 2).contiguous().view(hidden.shape))
        )
        return hidden + self.mlp_dropout(self.narrow(F.gelu(self.widen(self.mlp_norm(hidden)), approximate="tanh")))


class EagerBlock(Block):
    """The same block with attention written out. `scores` and `mask` live until it returns."""

    def forward(self, hidden: Tensor) -> Tensor:
        query, key, value = self.projected(hidden)
        tokens = hidden.shape[1]
        scores = (query @ key.transpose(-2, -1)) * (1.0 / math.sqrt(key.size(-1)))
        mask = torch.ones(tokens, tokens, dtype=torch.bool, device=hidden.device).tril()
        weights = F.softmax(scores.masked_fill(~mask, float("-inf")), dim=-1)
        attended = F.dropout(weights, self.dropout_rate, self.training) @ value
        return self.after_attention(hidden, attended)


class Gpt(nn.Module):
    """A GPT with tied embeddings that returns the loss."""

    def __init__(self, shape: GptShape) -> None:
        super().__init__()
        block = EagerBlock if shape.eager_attention else Block
        self.checkpointing = shape.checkpointing
        self.token_embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.position_embedding = nn.Embedding(shape.context, shape.width)
        self.blocks = nn.ModuleList(block(shape) for _ in range(shape.layers))
        self.dropout = nn.Dropout(shape.dropout)
        self.last_norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        self.head.weight = self.token_embedding.weight

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        hidden = self.dropout(
            self.token_embedding(tokens) + self.position_embedding(torch.arange(tokens.size(1), device=tokens.device))
        )
        for block in self.blocks:
            hidden = checkpoint(block, hidden, use_reentrant=False) if self.checkpointing else block(hidden)
        logits = self.head(self.last_norm(hidden))
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


class UNet(nn.Module):
    """Four levels of double convolutions with skip connections; a class for every pixel."""

    def __init__(self, channels: tuple[int, ...] = (32, 64, 128, 256), classes: int = 2) -> None:
        super().__init__()
        upwards = list(zip(channels[:0:-1], channels[-2::-1], strict=True))
        self.encoders = nn.ModuleList(map(double_convolution, (3, *channels), channels))
        self.upsamplings = nn.ModuleList(nn.ConvTranspose2d(deep, flat, 2, 2) for deep, flat in upwards)
        self.decoders = nn.ModuleList(double_convolution(2 * flat, flat) for _, flat in upwards)
        self.classifier = nn.Conv2d(channels[0], classes, 1)

    def forward(self, image: Tensor) -> Tensor:
        skipped: list[Tensor] = []
        hidden = image
        for level, encoder in enumerate(self.encoders):
            hidden = encoder(F.max_pool2d(hidden, 2) if level else hidden)
            skipped.append(hidden)
        for upsampling, decoder, skip in zip(self.upsamplings, self.decoders, skipped[-2::-1], strict=True):
            hidden = decoder(torch.cat([skip, upsampling(hidden)], 1))
        return self.classifier(hidden)


def double_convolution(inputs: int, outputs: int) -> nn.Sequential:
    """Make two 3x3 convolutions, each with batch norm and ReLU."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
        nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


# ---- the training step


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a model is trained."""

    optimizer: str = "adamw"
    autocast: torch.dtype | None = None
    scaled: bool = False
    """Scale the loss with a `GradScaler`."""
    clip_norm: float | None = None
    accumulation: int = 1
    """Backward passes for one optimizer step."""
    keep_gradients: bool = False
    """Zero the gradients in place rather than drop them."""


OPTIMIZERS: Final[dict[str, MakeOptimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=1e-3),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=1e-3, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-4),
    "adamw_fused": lambda parameters: torch.optim.AdamW(parameters, lr=1e-4, fused=True),
    "adamw_single": lambda parameters: torch.optim.AdamW(parameters, lr=1e-4, foreach=False),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=1e-3),
    "adafactor": lambda parameters: torch.optim.Adafactor(parameters, lr=1e-3),
}


class Trainer:
    """A model on its device, its optimizer, and the step that trains it."""

    def __init__(self, model: nn.Module, make_batch: MakeBatch, loss_of: LossOf, recipe: Recipe, device: str) -> None:
        self.model = model.to(device).train()
        self.optimizer: torch.optim.Optimizer | None = OPTIMIZERS[recipe.optimizer](trainable(model.parameters()))
        self._scaler = torch.amp.GradScaler(device) if recipe.scaled else None
        self._make_batch, self._loss_of, self._recipe, self._device = make_batch, loss_of, recipe, device

    def step(self, number: int) -> float:
        """Train one step and read the loss. Batch and loss live until the end."""
        for _ in range(self._recipe.accumulation):
            batch = self._make_batch(self._device)
            with self._autocast():
                loss = self._loss_of(self.model, *batch)
            self._backward(loss)
        self._update()
        return loss.item()

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        dtype = self._recipe.autocast
        return contextlib.nullcontext() if dtype is None else torch.autocast(self._device, dtype=dtype)

    def _backward(self, loss: Tensor) -> None:
        if self._scaler is not None:
            self._scaler.scale(loss / self._recipe.accumulation).backward()
        elif self._recipe.accumulation > 1:
            (loss / self._recipe.accumulation).backward()
        else:
            loss.backward()

    def _update(self) -> None:
        assert self.optimizer is not None
        if self._recipe.clip_norm is not None:
            if self._scaler is not None:
                self._scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), self._recipe.clip_norm)
        if self._scaler is not None:
            self._scaler.step(self.optimizer)
            self._scaler.update()
        else:
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=not self._recipe.keep_gradients)


class Evaluator(Trainer):
    """A model that only reads: no gradients, no optimizer."""

    def __init__(self, model: nn.Module, make_batch: MakeBatch, device: str) -> None:
        self.model = model.to(device).eval()
        self.optimizer = None
        self._make_batch, self._device = make_batch, device

    def step(self, number: int) -> float:
        """Compute one loss and read it."""
        batch = self._make_batch(self._device)
        with torch.no_grad():
            return self.model(*batch).item()


def trainable(parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    """Return the parameters that want a gradient."""
    return [parameter for parameter in parameters if parameter.requires_grad]


# ---- batches and losses


def tokens(batch: int, length: int, vocabulary: int) -> MakeBatch:
    """Make a batch of token numbers that are their own targets."""

    def make(device: str) -> Batch:
        numbers = torch.randint(0, vocabulary, (batch, length), device=device)
        return numbers, numbers

    return make


def labelled(features: tuple[int, ...], classes: int, labels: tuple[int, ...]) -> MakeBatch:
    """Make a batch of random features and labels of the given shapes."""

    def make(device: str) -> Batch:
        return torch.randn(features, device=device), torch.randint(0, classes, labels, device=device)

    return make


def own_loss(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """Ask a model that computes its loss itself."""
    return model(inputs, targets)


def cross_entropy(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """Compare a model's scores with the targets."""
    return F.cross_entropy(model(inputs), targets)


def hugging_face_loss(model: nn.Module, inputs: Tensor, labels: Tensor, mask: Tensor | None) -> Tensor:
    """Ask a model of transformers for its loss."""
    if mask is None:
        return model(input_ids=inputs, labels=labels).loss
    return model(input_ids=inputs, labels=labels, attention_mask=mask).loss


# ---- workloads: a name, and how to build it


@dataclass(frozen=True, kw_only=True)
class MlpWorkload:
    """Classify random vectors."""

    inputs: int
    hidden: int
    depth: int
    outputs: int
    batch: int
    recipe: Recipe = field(default_factory=Recipe)

    def __call__(self, device: str) -> Trainer:
        model = mlp(self.inputs, self.hidden, self.depth, self.outputs)
        make_batch = labelled((self.batch, self.inputs), self.outputs, (self.batch,))
        return Trainer(model, make_batch, cross_entropy, self.recipe, device)


@dataclass(frozen=True, kw_only=True)
class GptWorkload:
    """Train a GPT on random tokens, or only evaluate it."""

    batch: int
    shape: GptShape = field(default_factory=GptShape)
    length: int | None = None
    """Tokens of a sequence; None: the whole context."""
    recipe: Recipe | None = field(default_factory=Recipe)
    """None: evaluate."""

    def __call__(self, device: str) -> Trainer:
        make_batch = tokens(self.batch, self.length or self.shape.context, self.shape.vocabulary)
        if self.recipe is None:
            return Evaluator(Gpt(self.shape), make_batch, device)
        return Trainer(Gpt(self.shape), make_batch, own_loss, self.recipe, device)


@dataclass(frozen=True, kw_only=True)
class VisionWorkload:
    """Classify random images into 1000 classes with a model of torchvision."""

    model: str
    batch: int
    recipe: Recipe = field(default_factory=Recipe)

    def __call__(self, device: str) -> Trainer:
        import torchvision

        make_batch = labelled((self.batch, 3, 224, 224), 1000, (self.batch,))
        return Trainer(torchvision.models.get_model(self.model), make_batch, cross_entropy, self.recipe, device)


@dataclass(frozen=True, kw_only=True)
class HuggingFaceWorkload:
    """Train a model of transformers on random tokens."""

    config: str
    model: str
    vocabulary: int
    batch: int
    length: int
    config_arguments: dict[str, int] = field(default_factory=dict)
    classifies: bool = False
    """One label a sequence in place of one a token."""
    masked: bool = False
    """Give an attention mask (of ones)."""
    recipe: Recipe = field(default_factory=Recipe)

    def __call__(self, device: str) -> Trainer:
        import transformers

        config = getattr(transformers, self.config)(**self.config_arguments)
        model = getattr(transformers, self.model)(config)
        return Trainer(model, self.make_batch, hugging_face_loss, self.recipe, device)

    def make_batch(self, device: str) -> Batch:
        """Return token numbers, labels, and the mask or None."""
        numbers = torch.randint(5, self.vocabulary, (self.batch, self.length), device=device)
        labels = torch.zeros(self.batch, dtype=torch.long, device=device) if self.classifies else numbers
        return numbers, labels, torch.ones_like(numbers) if self.masked else None


@dataclass(frozen=True, kw_only=True)
class UNetWorkload:
    """Segment random square images into two classes."""

    batch: int
    side: int
    recipe: Recipe = field(default_factory=Recipe)

    def __call__(self, device: str) -> Trainer:
        make_batch = labelled((self.batch, 3, self.side, self.side), 2, (self.batch, self.side, self.side))
        return Trainer(UNet(), make_batch, cross_entropy, self.recipe, device)


def digits(recipe: Recipe) -> MlpWorkload:
    """The small perceptron of every tutorial."""
    return MlpWorkload(inputs=784, hidden=512, depth=2, outputs=10, batch=128, recipe=recipe)


def wide(recipe: Recipe, *, depth: int = 8, outputs: int = 1000, batch: int = 1024) -> MlpWorkload:
    """A perceptron whose layers are 64 MiB each."""
    return MlpWorkload(inputs=4096, hidden=4096, depth=depth, outputs=outputs, batch=batch, recipe=recipe)


def bert(recipe: Recipe) -> HuggingFaceWorkload:
    """BERT base, masked language model."""
    return HuggingFaceWorkload(
        config="BertConfig", model="BertForMaskedLM", vocabulary=30522, batch=16, length=128, recipe=recipe
    )


NANO: Final = GptShape(width=128, layers=4, heads=4, context=128, vocabulary=1000)
TINY: Final = GptShape(width=256, layers=6, heads=8, context=256, vocabulary=5000)
TINY_DROPOUT: Final = GptShape(width=256, layers=6, heads=8, context=256, vocabulary=5000, dropout=0.1)
SMALL: Final = GptShape()
SMALL_EAGER: Final = GptShape(eager_attention=True)
SMALL_CHECKPOINTED: Final = GptShape(checkpointing=True)
MEDIUM: Final = GptShape(width=1024, layers=24, heads=16)
MEDIUM_CHECKPOINTED: Final = GptShape(width=1024, layers=24, heads=16, checkpointing=True)
LLAMA_160M: Final = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "intermediate_size": 2048,
}

ADAMW: Final = Recipe()
SGD: Final = Recipe(optimizer="sgd")
MOMENTUM: Final = Recipe(optimizer="momentum")
FUSED: Final = Recipe(optimizer="adamw_fused")
BF16: Final = Recipe(autocast=torch.bfloat16)
BF16_FUSED: Final = Recipe(autocast=torch.bfloat16, optimizer="adamw_fused")
FP16_SCALED: Final = Recipe(autocast=torch.float16, scaled=True, clip_norm=1.0)

WORKLOADS: Final[dict[str, Callable[[str], Trainer]]] = {
    "mlp_sgd": digits(SGD),
    "mlp_momentum": digits(MOMENTUM),
    "mlp_adamw": digits(ADAMW),
    "mlp_adamw_fused": digits(FUSED),
    "mlp_adamw_single": digits(Recipe(optimizer="adamw_single")),
    "mlp_big_adamw": wide(ADAMW),
    "mlp_big_adamw_bf16": wide(BF16),
    "mlp_big_sgd_bigbatch": MlpWorkload(inputs=1024, hidden=4096, depth=4, outputs=10, batch=32768, recipe=SGD),
    "mlp_big_adagrad": wide(Recipe(optimizer="adagrad"), depth=4, outputs=10, batch=256),
    "mlp_big_adafactor": wide(Recipe(optimizer="adafactor"), depth=4, outputs=10, batch=256),
    "gpt_nano_fp32": GptWorkload(shape=NANO, batch=8),
    "gpt_tiny_fp32": GptWorkload(shape=TINY, batch=8),
    "gpt_tiny_bf16": GptWorkload(shape=TINY, batch=8, recipe=BF16),
    "gpt_tiny_dropout": GptWorkload(shape=TINY_DROPOUT, batch=8),
    "gpt2s_b1_t1024_fp32": GptWorkload(batch=1),
    "gpt2s_b4_t1024_fp32": GptWorkload(batch=4),
    "gpt2s_b4_t1024_bf16": GptWorkload(batch=4, recipe=BF16),
    "gpt2s_b16_t1024_bf16": GptWorkload(batch=16, recipe=BF16),
    "gpt2s_b4_eager_attn_fp32": GptWorkload(shape=SMALL_EAGER, batch=4),
    "gpt2s_b4_fp16_scaler": GptWorkload(batch=4, recipe=FP16_SCALED),
    "gpt2s_b4_sgd": GptWorkload(batch=4, recipe=SGD),
    "gpt2s_b4_momentum": GptWorkload(batch=4, recipe=MOMENTUM),
    "gpt2s_b4_adamw_fused": GptWorkload(batch=4, recipe=FUSED),
    "gpt2s_b8_ckpt_fp32": GptWorkload(shape=SMALL_CHECKPOINTED, batch=8),
    "gpt2s_b8_ckpt_bf16": GptWorkload(shape=SMALL_CHECKPOINTED, batch=8, recipe=BF16),
    "gpt2s_b2_accum4_bf16": GptWorkload(batch=2, recipe=Recipe(autocast=torch.bfloat16, accumulation=4)),
    "gpt2s_b4_zero_grad_keep": GptWorkload(batch=4, recipe=Recipe(keep_gradients=True)),
    "gpt2m_b2_bf16": GptWorkload(shape=MEDIUM, batch=2, recipe=BF16),
    "gpt2m_b8_ckpt_bf16_fused": GptWorkload(shape=MEDIUM_CHECKPOINTED, batch=8, recipe=BF16_FUSED),
    "gpt2s_infer_no_grad": GptWorkload(batch=8, length=512, recipe=None),
    "bert_b16_t128_fp32": bert(ADAMW),
    "bert_b16_t128_bf16": bert(BF16),
    "roberta_cls_b32_t128": HuggingFaceWorkload(
        config="RobertaConfig",
        model="RobertaForSequenceClassification",
        vocabulary=50265,
        batch=32,
        length=128,
        classifies=True,
        masked=True,
    ),
    "hf_gpt2_b4_t1024_fp32": HuggingFaceWorkload(
        config="GPT2Config", model="GPT2LMHeadModel", vocabulary=GPT2_VOCABULARY, batch=4, length=1024
    ),
    "hf_llama_160m_b4_t1024_bf16": HuggingFaceWorkload(
        config="LlamaConfig",
        model="LlamaForCausalLM",
        vocabulary=32000,
        batch=4,
        length=1024,
        config_arguments=LLAMA_160M,
        recipe=BF16,
    ),
    "vit_b16_b32_fp32": VisionWorkload(model="vit_b_16", batch=32),
    "resnet18_b64_sgd": VisionWorkload(model="resnet18", batch=64, recipe=MOMENTUM),
    "resnet50_b32_sgd": VisionWorkload(model="resnet50", batch=32, recipe=MOMENTUM),
    "mobilenet_v2_b32": VisionWorkload(model="mobilenet_v2", batch=32, recipe=MOMENTUM),
    "unet_b4_256": UNetWorkload(batch=4, side=256),
}


class NoInitialValues(TorchFunctionMode):
    """Leave tensors on the host unfilled: filling them takes most of the time, and no memory of the card."""

    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        keywords = keywords or {}
        name, module = getattr(function, "__name__", ""), getattr(function, "__module__", "")
        if name in ("normal_", "uniform_", "erfinv_") or module == "torch.nn.init":
            tensor = arguments[0] if arguments else keywords["tensor"]
            if tensor.device.type == "cpu":
                return tensor
        return function(*arguments, **keywords)


def build(name: str, device: str) -> Trainer:
    """Build a workload quickly: its model without initial values."""
    with NoInitialValues():
        return WORKLOADS[name](device)


def main() -> None:
    """Train the workload that the command line names."""
    parser = argparse.ArgumentParser(description="Train one of the recorded workloads.")
    parser.add_argument("name", choices=WORKLOADS)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--device", default="cuda")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    trainer = build(arguments.name, arguments.device)
    for number in range(arguments.steps):
        trainer.step(number)


if __name__ == "__main__":
    main()
