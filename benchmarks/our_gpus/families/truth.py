"""Training workloads: PyTorch's peaks step by step, every segment's address, and the process's mappings.

The workloads are those of tests/truth that need torch and torchvision only. The snapshot and the mappings before and
after show where the driver places segments relative to what the process has mapped.
"""

from collections.abc import Mapping

from ..figure import Figure, recorded
from ..instruments import mappings, peaks, record_history, reset_peaks, snapshot
from ..question import Answer, GpuUnderTest, Question
from . import pairs

STEPS = 3
NAMES = (
    "gpt2s_b4_t1024_bf16", "gpt2s_b4_t1024_fp32", "resnet50_b32_sgd", "gpt2s_b8_ckpt_bf16", "mlp_big_adamw_bf16",
    "vit_b16_b32_fp32", "gpt2s_b4_fp16_scaler", "unet_b4_256", "gpt2m_b8_ckpt_bf16_fused", "gpt2s_b4_eager_attn_fp32",
    "gpt_tiny_dropout", "mlp_big_adafactor", "gpt2s_infer_no_grad", "mobilenet_v2_b32",
)  # fmt: skip
SETTINGS = {"default": "", "expandable": "expandable_segments:True"}


def questions() -> list[Question]:
    """Every workload under the default settings, then every one with expandable segments."""
    return [
        Question(
            name=f"truth/{name}/{setting}",
            about=f"peaks of {STEPS} training steps, segments and mappings",
            seconds=9,
            environment={"PYTORCH_CUDA_ALLOC_CONF": text} if text else {},
        )
        for setting, text in SETTINGS.items()
        for name in NAMES
    ]


def answer(question: Question, gpu: GpuUnderTest) -> Answer:
    """Train, with every allocation recorded."""
    import torch

    from tests.truth.workloads import build

    torch.manual_seed(0)
    torch.cuda.init()
    torch.ones(1, device="cuda")  # the context, and what it maps, is there before the mappings are read
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = mappings()
    record_history()
    trainer = build(question.parts[0], "cuda")
    for parameter in trainer.model.parameters():
        parameter.data.normal_(std=0.02)  # `build` leaves them unwritten, and a NaN would keep optimizers from stepping
    steps, losses = [], []
    for number in range(STEPS):
        reset_peaks()
        loss = trainer.step(number)
        steps.append(peaks())
        losses.append(str(loss))
    torch.cuda.synchronize()
    scaler = vars(trainer).get("_scaler")
    return {
        "steps": steps,
        "losses": losses,
        # Below 65536, a gradient was infinite and that step's update was left out: the optimizer's state came later.
        "loss_scale": scaler.get_scale() if scaler else None,
        "mappings": {"before": before, "after": mappings()},
        "attachments": {"snapshot": snapshot()},
    }


def compare(real: Answer, emulated: Answer) -> list[Figure]:
    """Compare the peaks of every step, and how far the loss was scaled in the end."""
    if not real["steps"]:
        raise ValueError("the answer has no step")
    figures = [
        Figure(name=f"step {number}, peak of {counter}", kind=counter.removesuffix("_bytes"), real=there, emulated=here)
        for number, steps in enumerate(zip(real["steps"], emulated["steps"], strict=True), 1)
        for counter, there, here in pairs("counters", *steps)
    ]
    scale, other = real.get("loss_scale"), emulated.get("loss_scale")
    if scale is not None or other is not None:
        figures.append(Figure(name="loss scale", kind="values", real=scale, emulated=other))
    return figures


def analyse(real: Answer, attachments: Mapping[str, bytes]) -> list[Figure]:
    """Say how well the rules of placement foretell where the segments lie."""
    if "snapshot" not in attachments:
        return [recorded("segments placed", "placement", "the snapshot is missing")]
    from ..placement import placement_figures  # it needs numpy and ullage, and the plan is made without

    mappings = real["mappings"]
    return placement_figures(attachments["snapshot"], mappings["before"], mappings["after"])
