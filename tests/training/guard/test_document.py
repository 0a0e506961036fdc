"""docs/guard.md: its example is what a reader will run."""

import re
from pathlib import Path

from tests.shared.inside import inside

DOCUMENT = Path(__file__).parents[3] / "docs/guard.md"


@inside
def test_the_documents_example_runs() -> None:
    blocks = re.findall(r"```python.*?\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    names: dict[str, object] = {}
    exec(compile("\n".join(blocks), str(DOCUMENT), "exec"), names)
    assert float(names["loss"]) > 0  # type: ignore[arg-type]
    assert len(blocks) == 2
