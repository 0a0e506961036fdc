"""What the explanation of a text looks like on a terminal of 80 columns.

The figures 2.58, 1.67 and 4.96 GiB are those that the forum's thread on torch.cuda.empty_cache() asks about; what the
card had and what was allocated is generated to fit them.

Write the golden file again with: ULLAGE_GOLDEN=write pytest tests/golden
"""

import io
import os
from pathlib import Path

from rich.console import Console

from ullage.explaining.analysis.text.describe import describe_text
from ullage.explaining.analysis.text.explain import explain_text
from ullage.report.terminal import draw

GOLDEN = Path(__file__).parent / "explain_text.txt"
LOG = """\
| epoch 001:   4173 / 7012 loss=5.31
Traceback (most recent call last):
  File "translate/train.py", line 211, in main
    loss = model(batch.source, batch.target)
  File "/opt/lib/python3.7/site-packages/torch/nn/functional.py", line 1369, in linear
    ret = torch.addmm(torch.jit._unwrap_optional(bias), input, weight.t())
RuntimeError: CUDA out of memory. Tried to allocate 2.58 GiB (GPU 0; 15.78 GiB total capacity; 8.43 GiB already \
allocated; 1.67 GiB free; 4.96 GiB cached)
"""


def test_the_text_of_the_forums_thread_looks_as_it_did() -> None:
    stream = io.StringIO()
    report = describe_text(explain_text(LOG, source="train.log"))
    draw(report, Console(file=stream, width=80, highlight=False, force_terminal=False))
    text = "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"
    if os.environ.get("ULLAGE_GOLDEN") == "write":
        GOLDEN.write_text(text, encoding="utf-8")
    assert text == GOLDEN.read_text(encoding="utf-8")
    assert max(len(line) for line in text.splitlines() if not line.startswith("The free memory was fragmented")) <= 80
