"""A script may clear what Python needs for imports, or close file descriptors, at any time."""

from pathlib import Path

import pytest

from tests.shared.commands import Predict

pytestmark = pytest.mark.own_process

USES = "import torch\nkept = torch.ones(1 << 20, device='cuda')\n"


@pytest.mark.parametrize(
    "clears",
    [
        "sys.path.clear()",
        "sys.meta_path.clear()",
        "sys.path_hooks.clear(); sys.path_importer_cache.clear()",
        "sys.modules.clear()",
        "[sys.modules.pop(name) for name in list(sys.modules) if name.startswith('ullage')]",
        "sys.path = []; sys.meta_path = []",
        "sys.path.clear(); sys.meta_path.clear(); sys.modules.clear(); raise ValueError('mine')",
    ],
)
def test_import_state_that_is_cleared_at_the_end(predict: Predict, workplace: Path, clears: str) -> None:
    (workplace / "clears.py").write_text(f"import sys\n{USES}{clears}\n")
    ended = predict(workplace / "clears.py", "--json")
    if "raise" in clears:
        assert ended.code == 3
        assert "raised ValueError at line 4 of" in ended.error
    else:
        assert ended.code == 0, ended.error
        assert ended.json["peak_allocated_bytes"] == 4 << 20


@pytest.mark.parametrize(
    "clears", ["[sys.modules.pop(name) for name in list(sys.modules) if name.startswith('ullage')]"]
)
def test_import_state_that_is_cleared_before_torch(predict: Predict, workplace: Path, clears: str) -> None:
    (workplace / "clears.py").write_text(f"import sys\n{clears}\n{USES}")
    ended = predict(workplace / "clears.py", "--json")
    assert ended.code == 0, ended.error
    assert ended.json["peak_allocated_bytes"] == 4 << 20


@pytest.mark.parametrize("first", [3, 0])
def test_descriptors_that_are_closed_late(predict: Predict, workplace: Path, first: int) -> None:
    (workplace / "closes.py").write_text(f"import os\n{USES}os.closerange({first}, 4096)\n")
    ended = predict(workplace / "closes.py")
    assert ended.code == 3
    assert "closes.py closed the pipe that ullage reads, so ullage did not receive the result" in ended.error
