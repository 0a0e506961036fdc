"""Whether a float that is read decides something is told from the source of the line."""

from pathlib import Path

import pytest

from ullage.gpu.values.consequence import may_decide

LOGGED = [
    "if step % 10 == 0: print(loss.item())  # here",
    "for row in rows: print(loss.item())  # here",
    "print(loss.item())  # here",
    "total += loss.item()  # here",
    "history.append(loss.item())  # here",
    "bar.set_postfix(loss=loss.item())  # here",
    "value = loss.item()  # here\n    print(value)",
    "log = f'{loss.item():.3f}'  # here",
    "losses = {'loss': loss.item()}  # here",
    "self.loss = loss.item()  # here\n    print(self.loss)",
    "logger.info('loss %f', loss.item())  # here",
    "wandb.log({'loss': loss.item(), 'step': step})  # here",
    "total += loss.item()  # here\nprint(total / 3)",
    "mean = round(loss.item(), 4)  # here\n    print(mean)",
    "history.append(loss.item())  # here\n    if len(history) > 2: print(history)",
    "logs['loss'] = loss.item()  # here\n    if logs is not None: logger.info(logs)",
    "self.loss = loss.item()  # here\n    if self.loss is None: print(self.loss)",
    "def train(): return loss.item()  # here\n    value = train()\n    print(value)",
    "value = loss.item()  # here\n    print(value)\ndef other(value): return value if value < 1 else 1",
    "total = total + loss.item()  # here\n    if step % 10 == 0: print(f'{total:.3f}')",
]
DECIDING = [
    "if loss.item() < 1: break  # here",
    "while loss.item() > 1: pass  # here",
    "for row in range(int(n.item())): pass  # here",
    "if loss.item() < 1:  # here\n        break",
    "assert loss.item() > 0  # here",
    "k = int(3 * share.item())  # here",
    "err = (a - b).norm().item()  # here\n    if err < 1e-3: break",
    "rows = x[: int(n.item())]  # here",
    "keep = 'yes' if p.item() > 0.5 else 'no'  # here",
    "while (err := (a - b).norm().item()) > 1e-3:  # here\n        pass",
    "err = (a - b).norm().item(); a = b  # here\n    while err > 1: pass",
    "norm = clip(model).item()  # here\n    if not math.isfinite(norm): continue",
    "self.loss = loss.item()  # here\n    if self.loss < 1: break",
    "total += loss.item()  # here\nif total < 1: print(total)",
    "value = loss.item()  # here\nassert value < 1",
    "value = loss.item()  # here\n    mean = value / 2\n    while mean > 1: pass",
    "history.append(loss.item())  # here\n    if history[-1] < 1: break",
    "logs['loss'] = loss.item()  # here\n    if logs['loss'] < 1: break",
    "def train(): return loss.item()  # here\n    if train() < 1: break",
    "def train(): return loss.item()  # here\n    value = train()\n    if value < 1: break",
    "value = loss.item()  # here\ndef other(): return 1 if value < 1 else 2",
    "def other():\n        global value\n        value = loss.item()  # here\nif value < 1: pass",
    "def called_elsewhere(): return loss.item()  # here",
    "low, high = x.min().item(), x.max().item()  # here\n    rows = range(0, 9) if high > 1 else []",
    "def state(self): self.best = loss.item()  # here\nclass Stop:\n    def __bool__(self): return self.best < 1",
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
