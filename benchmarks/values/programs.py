"""Small programs in which values decide sizes, each the same on the host's CPU and on a card.

A program gets the device, and notes the sizes that its values decide. Weights are freshly initialised, data made up.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

Note = Callable[[str, Any], None]
Program = Callable[[str, Note], None]
PROGRAMS: Final[dict[str, Program]] = {}
STEPS: Final = 3


def program(function: Program) -> Program:
    """Register a program by its name."""
    PROGRAMS[function.__name__] = function
    return function


def trained(module: nn.Module, *, rate: float = 1e-3) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return a module with an optimizer for it."""
    return module, torch.optim.AdamW(module.parameters(), rate)


def experts(width: int, count: int) -> nn.ModuleList:
    """Return feed-forward networks."""
    return nn.ModuleList(
        nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)) for _ in range(count)
    )


# ---- mixtures of experts


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


# ---- detection


def _pictures(device: str, number: int, side: int) -> tuple[list[torch.Tensor], list[dict[str, torch.Tensor]]]:
    pictures = [torch.rand(3, side, side).to(device) for _ in range(number)]
    targets = []
    for _ in range(number):
        corner = torch.rand(5, 2) * side * 0.6
        size = torch.rand(5, 2) * side * 0.3 + 8
        masks = torch.zeros(5, side, side, dtype=torch.uint8)
        for mask, (left, top), (width, height) in zip(masks, corner.tolist(), size.tolist(), strict=True):
            mask[int(top) : int(top + height), int(left) : int(left + width)] = 1
        target = {"boxes": torch.cat([corner, corner + size], 1), "labels": torch.randint(1, 5, (5,)), "masks": masks}
        targets.append({name: each.to(device) for name, each in target.items()})
    return pictures, targets


def _backbone() -> nn.Module:
    backbone = nn.Sequential(
        nn.Conv2d(3, 32, 7, 4, 3), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU(), nn.Conv2d(64, 64, 3, 2, 1)
    )
    backbone.out_channels = 64  # type: ignore[assignment]
    return backbone


def _detector(model: Any, device: str, note: Note) -> None:
    model, optimizer = trained(model.to(device).train(), rate=1e-4)
    model.roi_heads.box_roi_pool.register_forward_pre_hook(
        lambda _, inputs: [note("boxes", len(each)) for each in inputs[1]] and None
    )
    if model.roi_heads.mask_roi_pool is not None:
        model.roi_heads.mask_roi_pool.register_forward_pre_hook(
            lambda _, inputs: [note("masks", len(each)) for each in inputs[1]] and None
        )
    for _ in range(2):
        pictures, targets = _pictures(device, 2, 320)
        losses = model(pictures, targets)
        sum(losses.values()).backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        found = model(pictures)
    note("found", sum(len(each["boxes"]) for each in found))


_SMALL: Final = {"min_size": 320, "max_size": 320, "num_classes": 6}


@program
def faster_rcnn(device: str, note: Note) -> None:
    """Train a Faster R-CNN of torchvision, and look for boxes with it."""
    from torchvision.models.detection import FasterRCNN
    from torchvision.models.detection.rpn import AnchorGenerator
    from torchvision.ops import MultiScaleRoIAlign

    anchors = AnchorGenerator(((32, 64, 128),), ((0.5, 1.0, 2.0),))
    pool = MultiScaleRoIAlign(["0"], 7, 2)
    model = FasterRCNN(_backbone(), rpn_anchor_generator=anchors, box_roi_pool=pool, **_SMALL)
    _detector(model, device, note)


@program
def mask_rcnn(device: str, note: Note) -> None:
    """Train a Mask R-CNN of torchvision, and look for masks with it."""
    from torchvision.models.detection import MaskRCNN
    from torchvision.models.detection.rpn import AnchorGenerator
    from torchvision.ops import MultiScaleRoIAlign

    anchors = AnchorGenerator(((32, 64, 128),), ((0.5, 1.0, 2.0),))
    pool, masks = MultiScaleRoIAlign(["0"], 7, 2), MultiScaleRoIAlign(["0"], 14, 2)
    model = MaskRCNN(_backbone(), rpn_anchor_generator=anchors, box_roi_pool=pool, mask_roi_pool=masks, **_SMALL)
    _detector(model, device, note)


@program
def nms_pipeline(device: str, note: Note) -> None:
    """Decode boxes from a convolution, keep those with a score, suppress, and pool what is left."""
    from torchvision.ops import nms, roi_align

    body, optimizer = trained(nn.Conv2d(3, 64, 8, 8).to(device))
    head = nn.Conv2d(64, 5, 1).to(device)
    classify = nn.Linear(64 * 49, 256).to(device)
    side = 32
    y, x = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    centers = (torch.stack([x, y], -1).reshape(-1, 2) * 8.0 + 4).to(device)
    for _ in range(STEPS):
        features = body(torch.rand(1, 3, 256, 256, device=device))
        predicted = head(features)[0].flatten(1).T
        sizes = predicted[:, 2:4].clamp(-2, 2).exp() * 24
        middle = centers + predicted[:, :2] * 8
        boxes = torch.cat([middle - sizes / 2, middle + sizes / 2], 1).clamp(0, 256)
        scores = predicted[:, 4].sigmoid()
        likely = scores > 0.5
        note("likely", int(likely.sum()))
        kept = nms(boxes[likely].detach(), scores[likely].detach(), 0.5)
        note("kept", len(kept))
        rois = roi_align(features, [boxes[likely][kept]], 7, 1 / 8)
        classify(rois.flatten(1)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def yolo(device: str, note: Note) -> None:
    """Train YOLOv8n of ultralytics on made-up pictures."""
    import os

    os.environ.setdefault("YOLO_OFFLINE", "true")
    from PIL import Image
    from ultralytics import YOLO
    from ultralytics.utils import loss

    original = loss.v8DetectionLoss.preprocess

    def preprocess(this: Any, *arguments: Any, **keywords: Any) -> torch.Tensor:
        result = original(this, *arguments, **keywords)
        note("most boxes of a picture", result.shape[1])
        return result

    loss.v8DetectionLoss.preprocess = preprocess
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for part in ("train", "val"):
            (folder / "images" / part).mkdir(parents=True)
            (folder / "labels" / part).mkdir(parents=True)
            for number in range(4):
                pixels = torch.randint(0, 256, (64, 64, 3), dtype=torch.uint8).numpy()
                Image.fromarray(pixels).save(folder / "images" / part / f"{number}.png")
                lines = [
                    f"{int(torch.randint(0, 2, ()))} {a:.3f} {b:.3f} {c:.3f} {d:.3f}\n"
                    for a, b, c, d in (torch.rand(2 + number, 4) * 0.4 + 0.3).tolist()
                ]
                (folder / "labels" / part / f"{number}.txt").write_text("".join(lines))
        data = folder / "data.yaml"
        data.write_text(f"path: {folder}\ntrain: images/train\nval: images/val\nnames: [a, b]\n")
        YOLO("yolov8n.yaml").train(
            data=str(data),
            epochs=1,
            imgsz=64,
            batch=4,
            device=0 if device == "cuda" else "cpu",
            workers=0,
            plots=False,
            amp=False,
            save=False,
            val=True,
            project=place,
            verbose=False,
        )


# ---- generation


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


# ---- graphs


def _graph_batches(device: str) -> list[Any]:
    from torch_geometric.data import Batch, Data

    batches = []
    for _ in range(STEPS):
        graphs = []
        for _ in range(32):
            nodes = int(torch.randint(20, 60, ()))
            graphs.append(Data(x=torch.randn(nodes, 16), edge_index=torch.randint(0, nodes, (2, nodes * 4))))
        batches.append(Batch.from_data_list(graphs).to(device))
    return batches


class _Pooled(nn.Module):
    def __init__(self, pool: Any, note: Note) -> None:
        from torch_geometric.nn import GraphConv

        super().__init__()
        self.convolutions = nn.ModuleList([GraphConv(16, 64), GraphConv(64, 64)])
        self.pools = nn.ModuleList([pool(64, ratio=0.8), pool(64, ratio=0.5)])
        self.head = nn.Linear(128, 2)
        self.note = note

    def forward(self, batch: Any) -> torch.Tensor:
        from torch_geometric.nn import global_max_pool, global_mean_pool

        x, edges, owner = batch.x, batch.edge_index, batch.batch
        for convolution, pool in zip(self.convolutions, self.pools, strict=True):
            x = convolution(x, edges).relu()
            x, edges, _, owner, *_ = pool(x, edges, None, owner)
            self.note("nodes", x.shape[0])
            self.note("edges", edges.shape[1])
        return self.head(torch.cat([global_max_pool(x, owner), global_mean_pool(x, owner)], 1))


def _graphs(pool: Any, device: str, note: Note) -> None:
    model, optimizer = trained(_Pooled(pool, note).to(device))
    for batch in _graph_batches(device):
        result = model(batch)
        nn.functional.cross_entropy(result, torch.randint(0, 2, (32,)).to(device)).backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def topk_pooling(device: str, note: Note) -> None:
    """Train a network for graphs with TopKPooling of PyG."""
    from torch_geometric.nn import TopKPooling

    _graphs(TopKPooling, device, note)


@program
def sag_pooling(device: str, note: Note) -> None:
    """Train a network for graphs with SAGPooling of PyG."""
    from torch_geometric.nn import SAGPooling

    _graphs(SAGPooling, device, note)


# ---- loops and choices


@program
def early_stopping(device: str, note: Note) -> None:
    """Stop when the loss has not fallen for three steps."""
    model, optimizer = trained(nn.Linear(256, 256).to(device))
    best, patience, step = float("inf"), 0, 0
    while patience < 3 and step < 40:
        loss = model(torch.randn(512, 256, device=device)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        value = loss.item()
        patience = 0 if value < best else patience + 1
        best = min(best, value)
    note("at least one step", min(step, 1))


@program
def token_codes(device: str, note: Note) -> None:
    """Take the nearest codes of a codebook, and look which of them are used (VQ-VAE)."""
    body, optimizer = trained(nn.Linear(64, 64).to(device))
    codes = torch.randn(256, 64, device=device)
    for _ in range(STEPS):
        hidden = body(torch.randn(2048, 64, device=device))
        nearest = torch.cdist(hidden, codes).argmin(-1)
        picked = codes[nearest]
        through = hidden + (picked - hidden).detach()
        used = nearest.unique()
        note("used codes", len(used))
        (through.square().mean() + (hidden - picked).square().mean()).backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def gumbel_choice(device: str, note: Note) -> None:
    """Choose by straight-through Gumbel noise, and work on what was chosen."""
    body, optimizer = trained(nn.Linear(64, 4).to(device))
    after = nn.Linear(64, 512).to(device)
    for _ in range(STEPS):
        hidden = torch.randn(4096, 64, device=device)
        choice = nn.functional.gumbel_softmax(body(hidden), hard=True)
        picked = hidden[choice[:, 0] > 0.5]
        note("rows", len(picked))
        (after(picked).square().mean() + choice.square().mean()).backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def hard_examples(device: str, note: Note) -> None:
    """Take the hardest negatives, three for each positive that the card counts."""
    model, optimizer = trained(nn.Linear(128, 64).to(device))
    for _ in range(STEPS):
        scores = model(torch.randn(2048, 128, device=device))
        positive = torch.rand_like(scores) < 0.05
        loss = nn.functional.binary_cross_entropy_with_logits(scores, positive.float(), reduction="none")
        number = int(3 * positive.sum().item())
        note("hardest", number)
        hardest = loss[~positive].topk(number).values
        (hardest.mean() + loss[positive].mean()).backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def reinforce(device: str, note: Note) -> None:
    """Play episodes of at most 50 moves by sampled actions, and learn by REINFORCE."""
    policy, optimizer = trained(nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 4)).to(device))
    for _ in range(STEPS):
        chances = []
        state = torch.randn(8)
        place = 0
        while len(chances) < 50 and abs(place) < 6:
            distribution = torch.distributions.Categorical(logits=policy(state.to(device)))
            action = distribution.sample()
            chances.append(distribution.log_prob(action))
            place += (-1, 0, 0, 1)[action.item()]
            state = torch.randn(8)
        note("a whole episode", int(len(chances) >= 6))
        (-torch.stack(chances).sum()).backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def fixed_point(device: str, note: Note) -> None:
    """Look for a fixed point, and keep what led to it."""
    model, optimizer = trained(nn.Linear(128, 128).to(device))
    for _ in range(STEPS):
        given = torch.randn(512, 128, device=device)
        state = torch.zeros_like(given)
        kept = []
        error = 1.0
        while error > 1e-3 and len(kept) < 1000:
            after = torch.tanh(0.5 * model(state) + given)
            error = ((after - state).norm() / after.norm()).item()
            state = after
            kept.append(state)
        note("iterations", len(kept))
        torch.stack(kept).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def sampled_until_done(device: str, note: Note) -> None:
    """Sample words until every sequence has ended."""
    words, cell, head = nn.Embedding(30, 64), nn.GRUCell(64, 64), nn.Linear(64, 30)
    _, optimizer = trained(nn.ModuleList([words, cell, head]).to(device))
    for _ in range(2):
        token = torch.ones(16, dtype=torch.long, device=device)
        state = torch.zeros(16, 64, device=device)
        done = torch.zeros(16, dtype=torch.bool, device=device)
        chances = []
        while not done.all():
            state = cell(words(token), state)
            distribution = torch.distributions.Categorical(logits=head(state))
            token = distribution.sample()
            chances.append(distribution.log_prob(token))
            done = done | (token == 0)
        note("words", len(chances))
        (-torch.stack(chances).mean()).backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def active_units(device: str, note: Note) -> None:
    """Keep what is positive after a layer."""
    model, optimizer = trained(nn.Linear(128, 512).to(device))
    for _ in range(STEPS):
        hidden = model(torch.randn(2048, 128, device=device))
        active = torch.masked_select(hidden, hidden > 0)
        note("active", active.numel())
        active.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def masked_words(device: str, note: Note) -> None:
    """Work on the words that were masked at random on the card."""
    words, head = nn.Embedding(2000, 64), nn.Linear(64, 2000)
    _, optimizer = trained(nn.ModuleList([words, head]).to(device))
    for _ in range(STEPS):
        ids = torch.randint(0, 2000, (16, 256), device=device)
        masked = torch.rand(16, 256, device=device) < 0.15
        logits = head(words(ids)[masked])
        note("masked", len(logits))
        nn.functional.cross_entropy(logits, ids[masked]).backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def greedy_ctc(device: str, note: Note) -> None:
    """Collapse what a recognizer hears: repeats and blanks are left out."""
    model, optimizer = trained(nn.Linear(64, 40).to(device))
    for _ in range(STEPS):
        scores = model(torch.randn(8, 200, 64, device=device)).log_softmax(-1)
        for row in scores.argmax(-1):
            heard = row.unique_consecutive()
            heard = heard[heard != 0]
            note("letters", len(heard))
        targets = torch.randint(1, 40, (8, 20)).to(device)
        lengths = torch.full((8,), 200), torch.full((8,), 20)
        nn.functional.ctc_loss(scores.transpose(0, 1), targets, *lengths).backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def kept_tokens(device: str, note: Note) -> None:
    """Drop the tokens whose attention is below the mean."""
    model, optimizer = trained(nn.Linear(64, 64).to(device))
    after = nn.Linear(64, 256).to(device)
    for _ in range(STEPS):
        hidden = model(torch.randn(1024, 64, device=device))
        weights = (hidden @ hidden.T / 8).softmax(-1).mean(0)
        keep = weights > weights.mean()
        note("kept", int(keep.sum()))
        after(hidden[keep]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def clusters(device: str, note: Note) -> None:
    """Cluster features by k-means until assignments no longer change."""
    model = nn.Linear(32, 32).to(device)
    with torch.no_grad():
        points = model(torch.randn(1000, 32, device=device))
        centers = points[:8].clone()
        before = None
        rounds = 0
        while rounds < 500:
            nearest = torch.cdist(points, centers).argmin(-1)
            if before is not None and torch.equal(before, nearest):
                break
            before = nearest
            centers = torch.stack([points[nearest == number].mean(0) for number in range(8)])
            rounds += 1
        note("ended", int(rounds < 500))


@program
def skipped_steps(device: str, note: Note) -> None:
    """Skip steps whose loss or gradients are not finite, and clip the rest."""
    model, optimizer = trained(nn.Linear(256, 256).to(device))
    for _ in range(STEPS):
        loss = model(torch.randn(512, 256, device=device)).square().mean()
        if torch.isnan(loss).any() or not torch.isfinite(loss):
            continue
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
        if norm.item() == 0:
            continue
        optimizer.step()
        optimizer.zero_grad()
    note("states", len(optimizer.state))
