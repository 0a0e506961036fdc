"""The recorded truths: reading them, and comparing them with what was measured now.

A record holds one workload on one card under one torch: PyTorch's own counters after building it and after each of its
steps. `MANIFEST.md` says where they come from. Every counter in a record has to be met to the byte.
"""

import gzip
import importlib.util
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

RECORDS: Final = Path(__file__).with_name("records.jsonl.gz")
CONTEXT_BYTES: Final = 512 << 20
"""The CUDA context of every recorded card."""

NEEDED_BY: Final = {
    "torchvision": ("mobilenet_v2_b32", "resnet18_b64_sgd", "resnet50_b32_sgd", "vit_b16_b32_fp32"),
    "transformers": (
        "bert_b16_t128_bf16",
        "bert_b16_t128_fp32",
        "hf_gpt2_b4_t1024_fp32",
        "hf_llama_160m_b4_t1024_bf16",
        "roberta_cls_b32_t128",
    ),
}

Counters = Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """The emulated card of a record, and the allocator's settings."""

    gpu: str
    total: int
    cc: tuple[int, int]
    alloc_conf: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What PyTorch's allocator counted; sizes in bytes."""

    name: str
    card: Card
    torch: str
    cudnn: int
    param_bytes: int
    trainable_bytes: int
    buffer_bytes: int
    optimizer_bytes: int | None
    """Optimizer state on the card; None where memory ran out before there was all of it."""
    moments: Mapping[str, Counters] = field(repr=False)
    """By moment ("build", "step 1", ..., or "out of memory"): the counters then. Peaks are since the moment before."""
    oom: str | None = None
    """The text of PyTorch's error, where memory ran out."""

    @property
    def id(self) -> str:
        """A short name for a test."""
        settings = f"-{self.card.alloc_conf.split(':')[0]}" if self.card.alloc_conf else ""
        return f"{self.card.gpu.replace(' ', '_')}{settings}-{self.name}"

    @property
    def missing_package(self) -> str | None:
        """The package that the workload needs and that is not installed, None if nothing is missing."""
        needed = (package for package, names in NEEDED_BY.items() if self.name in names)
        return next((package for package in needed if importlib.util.find_spec(package) is None), None)

    def peak(self, counter: str) -> int:
        """The highest value of a counter over all moments."""
        return max(counters[counter] for counters in self.moments.values())


def record_of(row: Mapping[str, Any]) -> Record:
    """Make a record of one line of the file."""
    facts = dict(row)
    card = Card(
        gpu=facts.pop("gpu"), total=facts.pop("total"), cc=tuple(facts.pop("cc")), alloc_conf=facts.pop("alloc_conf")
    )
    return Record(card=card, **facts)


def load_records() -> list[Record]:
    """Read every record."""
    with gzip.open(RECORDS, "rt") as lines:
        return [record_of(json.loads(line)) for line in lines]


def differences(record: Record, measured: Mapping[str, Any]) -> list[str]:
    """List what differs, one line each; empty when all is equal.

    Args:
        record: what is expected.
        measured: the answer of `runner.Runner.measure`.
    """
    found = []
    for fact, expected in (
        ("gpu", record.card.gpu),
        ("total", record.card.total),
        ("cc", list(record.card.cc)),
        ("torch", record.torch),
        ("cudnn", record.cudnn),
        ("param_bytes", record.param_bytes),
        ("trainable_bytes", record.trainable_bytes),
        ("buffer_bytes", record.buffer_bytes),
        ("optimizer_bytes", record.optimizer_bytes),
        ("oom", record.oom),
        ("moments", list(record.moments)),
    ):
        got = list(measured["moments"]) if fact == "moments" else measured[fact]
        if got != expected and not (fact == "optimizer_bytes" and expected is None):
            found.append(f"{record.name}: {fact}: expected {expected}, got {got}")
    for moment, counters in record.moments.items():
        for counter, count in counters.items():
            now = measured["moments"].get(moment, {}).get(counter)
            if now != count:
                change = "" if now is None else f" ({now - count:+d})"
                found.append(f"{record.name}: {moment}: {counter}: expected {count}, got {now}{change}")
    return found
