"""Where torch is: on an emulated card, in a process of its own."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.shared.fresh import answer

_ROOT = Path(__file__).parents[2]


@pytest.fixture
def results_of() -> Callable[[str], Any]:
    """What `results()` of a module here comes to."""

    def ask(module: str) -> Any:
        code = f"""
            import gc, sys
            sys.path.insert(0, {str(_ROOT)!r})
            import ullage
            ullage.emulate("T4")
            from tests.integrations.{module} import results
            gc.collect()
            gc.freeze()
            tell(results())
        """
        return answer(code, environment={"OMP_NUM_THREADS": "1"})

    return ask
