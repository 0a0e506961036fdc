"""Whether a float that is read decides something is told from the source of the line."""

from pathlib import Path

import pytest

from ullage.values.consequence import may_decide

LOGGED = [
    "print(loss.item())  # here",
    "total += loss.item()  # here",
    "history.append(loss.item())  # here",
    "bar.set_postfix(loss=loss.item())  # here",
    "value = loss.item()  # here\n    print(value)",
    "log = f'{loss.item():.3f}'  # here",
    "losses = {'loss': loss.item()}  # here",
]
DECIDING = [
    "if loss.item() < 1:  # here\n        break",
    "assert loss.item() > 0  # here",
    "k = int(3 * share.item())  # here",
    "err = (a - b).norm().item()  # here\n    if err < 1e-3: break",
    "rows = x[: int(n.item())]  # here",
    "keep = 'yes' if p.item() > 0.5 else 'no'  # here",
    "while (err := (a - b).norm().item()) > 1e-3:  # here\n        pass",
    "err = (a - b).norm().item(); a = b  # here\n    while err > 1: pass",
    "norm = clip(model).item()  # here\n    if not math.isfinite(norm): continue",
]


@pytest.mark.parametrize(("code", "decides"), [(code, False) for code in LOGGED] + [(code, True) for code in DECIDING])
def test_what_a_line_does_with_a_number(tmp_path: Path, code: str, decides: bool) -> None:
    """Numbers that are logged decide nothing; those that are compared, indexed with or cut to whole ones may."""
    script = tmp_path / "script.py"
    script.write_text(f"for step in range(3):\n    {code}\n")
    line = next(number for number, text in enumerate(script.read_text().splitlines(), 1) if "# here" in text)
    assert may_decide(str(script), line) is decides


def test_a_condition_before_the_read_in_a_loop(tmp_path: Path) -> None:
    """A `while` that asks for what its body reads."""
    script = tmp_path / "script.py"
    script.write_text("err = 1.0\nwhile err > 1e-3:\n    err = step().item()\n")
    assert may_decide(str(script), 3)


@pytest.mark.parametrize("content", ["def broken(:\n", "", "\x00\x01"])
def test_a_source_that_cannot_be_read_says_no(tmp_path: Path, content: str) -> None:
    """No error comes of it."""
    script = tmp_path / "script.py"
    script.write_text(content)
    assert not may_decide(str(script), 1)
    assert not may_decide(str(tmp_path / "missing.py"), 1)
