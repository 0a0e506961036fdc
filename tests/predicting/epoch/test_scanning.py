"""A loader is gone through, and every batch is as foretold: padded, packed, truncated, from lengths or from items."""

from pathlib import Path

from tests.shared.fresh import answer

_ROOT = Path(__file__).parents[3]


def test_loaders_are_gone_through() -> None:
    code = f"""
        import sys
        sys.path.insert(0, {str(_ROOT)!r})
        import ullage
        ullage.emulate("T4")
        from tests.predicting.epoch.scanning import results
        tell(results())
    """
    assert answer(code, environment={"OMP_NUM_THREADS": "1"}) == {}
