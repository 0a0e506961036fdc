"""Predict short scripts whose ordinary lines need unexpected memory, as they are and with one change.

    python -m benchmarks.unexpected_costs [--only NAME] [--write docs/unexpected_costs.md]

The scripts are examples/unexpected_costs/*.py; the word "changed" on their command line makes the change.
"""

import argparse
import ast
import textwrap
from dataclasses import dataclass
from pathlib import Path

import ullage
from tools.stale_pages import write_page

SCRIPTS = Path(__file__).parents[1] / "examples/unexpected_costs"
GPU = "H100"
CHANGES = {
    "amax": "use `max(dim=...).values`",
    "autocast_cache_with_checkpointing": "pass `cache_enabled=False` to `torch.autocast`",
    "batched_weight": "use `torch.einsum`",
    "bool_mask": "convert the mask to float once, before the layers",
    "foreach_optimizer": "pass `foreach=False` to the optimizer",
    "fp32_logits": "compute the loss in checkpointed parts (or use a fused linear cross entropy)",
    "frozen_weight_under_autocast": "convert the frozen weight to bf16 once",
    "func_grad": "use `torch.autograd.grad`",
    "sparse_embedding": "use a dense gradient (`sparse=False`)",
}
TITLE = "# Which ordinary lines of PyTorch code need unexpected memory?"
PAGE = """{title}

The table lists nine short scripts in examples/unexpected_costs, and their peaks of allocated memory in MiB. Each script
has one line that needs more memory than expected. `ullage predict` ran each script on an emulated {gpu} (torch
{torch}), once unchanged and once with the change that the list below the table describes. The following two commands
predict the first script of the table, first unchanged, and then with the change.

```
ullage predict examples/unexpected_costs/{first}.py --gpu {gpu}
ullage predict examples/unexpected_costs/{first}.py changed --gpu {gpu}
```

| script | peak | with the change | ratio |
|---|---|---|---|
{rows}

{texts}

The scripts use small tensors. In other scripts, the saving is larger or smaller. `ullage predict` shows which of
these costs your own script has, and `ullage advise` tries the changes that apply to your script.
"""


@dataclass(frozen=True, slots=True)
class Row:
    """A script and its peaks of allocated memory, without and with the change."""

    name: str
    what: str
    before_bytes: int
    after_bytes: int

    def __str__(self) -> str:
        """Return the row of the table; sizes in MiB."""
        before, after = self.before_bytes >> 20, self.after_bytes >> 20
        return f"| `{self.name}.py` | {before:,} | {after:,} | {self.before_bytes / self.after_bytes:.1f} |"

    @property
    def text(self) -> str:
        """Return the list item with the reason and the change."""
        change = f"To reduce the memory of `{self.name}.py`, {CHANGES[self.name]}."
        said = f"* **{self.name}**: {self.what.removesuffix('.')}. {change}"
        return textwrap.fill(said, 120, subsequent_indent="  ", break_on_hyphens=False)


def row_of(name: str) -> tuple[Row, str]:
    """Predict a script without and with its change; return the row and the version of torch."""
    script = SCRIPTS / f"{name}.py"
    what = ast.get_docstring(ast.parse(script.read_text())) or ""
    before, after = (ullage.predict(script, arguments, gpu=GPU) for arguments in ((), ("changed",)))
    return Row(name, " ".join(what.split()), before.peak_allocated_bytes, after.peak_allocated_bytes), before.torch


def main() -> None:
    """Print the table, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="")
    parser.add_argument("--write", type=Path)
    asked = parser.parse_args()
    names = sorted(path.stem for path in SCRIPTS.glob("*.py") if asked.only in path.stem)
    found = [row_of(name) for name in names]
    rows = sorted((row for row, _ in found), key=lambda row: -row.before_bytes / row.after_bytes)
    for row in rows:
        print(row)
    if asked.write is not None:
        table, texts = "\n".join(map(str, rows)), "\n".join(row.text for row in rows)
        page = PAGE.format(title=TITLE, torch=found[0][1], gpu=GPU, first=rows[0].name, rows=table, texts=texts)
        write_page(asked.write, page)


if __name__ == "__main__":
    main()
