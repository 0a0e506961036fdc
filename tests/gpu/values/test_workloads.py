"""Nothing of values changes what PyTorch's allocator does, where no value decides."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.forked import client
from tests.gpu.values.quiet import RUN

_ROOT = Path(__file__).resolve().parents[3]
_SAMPLE = ("mlp_big_adafactor", "gpt_nano_fp32", "gpt_tiny_bf16", "gpt_tiny_dropout")
_MORE = (
    *("mlp_adamw", "gpt2s_b4_fp16_scaler", "gpt2s_b8_ckpt_bf16", "gpt2s_b4_eager_attn_fp32", "gpt2s_b4_zero_grad_keep"),
    *("gpt2s_b2_accum4_bf16", "unet_b4_256"),
)


def _traced(mode: str, names: tuple[str, ...]) -> dict[str, Any]:
    environment = {name: value for name, value in os.environ.items() if name != "ULLAGE_EMULATED_CARD"}
    done = client.run(
        [sys.executable, "-c", RUN, "tests.gpu.values.workloads", mode, *names],
        cwd=_ROOT,
        env=environment | client.USUAL,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))


def test_each_event_is_the_same_with_values(pytestconfig: pytest.Config) -> None:
    """Addresses, sizes, and what is allocated and reserved after each: equal with values on and off."""
    names = _SAMPLE + _MORE if pytestconfig.getoption("all_records") else _SAMPLE
    on, off = _traced("on", names), _traced("off", names)
    assert set(on) == set(names)
    assert not [each for each in on.values() if "error" in each]
    assert on == off
