"""Forward and backward in parts, as edits: what is written, and that the gradients stay those of the whole batch."""

import re
import textwrap
from typing import Any

import pytest

from tests.shared.inside import inside
from ullage.predicting.editing.apply import edited
from ullage.predicting.editing.batch_parts import PassPlaces, in_parts
from ullage.predicting.editing.edit import NotCertain

BEGINNING = """
import torch
import torch.nn.functional as F
torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
model = torch.nn.Linear(4, 3)
criterion = torch.nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = [(torch.randn(6, 4), torch.arange(6) % 3) for _ in range(2)] + [(torch.randn(5, 4), torch.arange(5) % 3)]
seen, total, printed = 0, 0.0, []
"""


def parts_of(source: str, *, parts: int = 3, batch: dict[str, bool] | None = None, function: str = "<module>") -> str:
    """Edit a source whose lines of the forward and of the backward pass are known by what they say."""
    lines = source.splitlines()
    forward = [number for number, line in enumerate(lines, 1) if "model(" in line and "def " not in line]
    [backward] = [number for number, line in enumerate(lines, 1) if ".backward(" in line]
    passes = PassPlaces(
        file="",
        function=function,
        forward_line=forward[0] if forward else None,
        backward_line=backward,
        batch=batch or {},
    )
    return edited(source, in_parts(source, passes, parts))


def computed(source: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(source, "script", "exec"), names)
    return names


KNOWN = {"x": True, "y": True}
LOOPS = {
    "the usual order": (
        """
        for x, y in data:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
        """,
        KNOWN,
    ),
    "zero_grad between the two": (
        """
        for x, y in data:
            out = model(x)
            loss = criterion(out, y)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
        """,
        KNOWN,
    ),
    "the loss is read afterwards": (
        """
        for step, (x, y) in enumerate(data):
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            printed.append(loss.item())
        """,
        KNOWN,
    ),
    "sums on the way": (
        """
        for x, y in data:
            out = model(x)
            loss = criterion(out, y)
            total += loss.item()
            seen += (out.argmax(-1) == y).sum().item() + len(x)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        """,
        KNOWN,
    ),
    "the batch is read afterwards": (
        """
        for x, y in data:
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            seen += x.size(0) + len(y)
        """,
        KNOWN,
    ),
    "a loss without a name": (
        """
        for x, y in data:
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
        """,
        KNOWN,
    ),
    "a loss in an attribute": (
        """
        class Out: pass
        for x, y in data:
            optimizer.zero_grad()
            out = Out()
            out = type("Out", (), {"loss": criterion(model(x), y)})
            out.loss.backward()
            optimizer.step()
        """,
        KNOWN,
    ),
    "a tuple": (
        """
        for batch in data:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(batch[0]), batch[1])
            loss.backward()
            optimizer.step()
        """,
        {},
    ),
    "a tuple, and a name on the way": (
        """
        for batch in data:
            optimizer.zero_grad()
            loss = F.cross_entropy(model((x := batch[0])), batch[1])
            loss.backward()
            optimizer.step()
        """,
        {},
    ),
    "a mapping": (
        """
        for x, y in data:
            batch = {"x": x, "y": y}
            optimizer.zero_grad()
            loss = F.cross_entropy(model(batch["x"]), batch["y"])
            loss.backward()
            optimizer.step()
        """,
        {},
    ),
    "tokens by their columns": (
        """
        for x, y in data:
            tokens = torch.cat((x, y[:, None]), 1)
            with torch.autocast("cpu", enabled=False):
                out = model(tokens[:, :4])
                loss = F.cross_entropy(out, tokens[:, 4].long())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        """,
        {},
    ),
    "a second term of the loss": (
        """
        for x, y in data:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss = loss + 0.1 * (x * x).mean()
            loss.backward()
            optimizer.step()
            printed.append(loss.item())
        """,
        KNOWN,
    ),
    "branches": (
        """
        for x, y in data:
            optimizer.zero_grad()
            if len(printed) > 100:
                loss = F.cross_entropy(model(x), y, label_smoothing=0.1)
            else:
                loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            printed.append(loss.item())
        """,
        KNOWN,
    ),
}


@pytest.mark.parametrize("name", LOOPS)
@pytest.mark.parametrize("parts", [2, 4])
@inside
def test_the_same_is_computed(name: str, parts: int) -> None:
    """The last batch does not divide into parts of one size."""
    loop, batch = LOOPS[name]
    source = BEGINNING + textwrap.dedent(loop)
    changed = parts_of(source, parts=parts, batch=batch)
    assert f".chunk({parts})" in changed
    whole, split = computed(source), computed(changed)
    for one, other in zip(whole["model"].parameters(), split["model"].parameters(), strict=True):
        assert (one - other).abs().max() < 1e-12
    for told in ("seen", "total", "printed"):
        assert whole[told] == pytest.approx(split[told], abs=1e-12)


def test_what_is_written_for_a_usual_loop() -> None:
    source = textwrap.dedent(
        """\
        for x, y in data:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
        """
    )
    assert parts_of(source, batch=KNOWN, parts=4) == textwrap.dedent(
        """\
        for x, y in data:
            optimizer.zero_grad()
            items = len(x)
            for x, y in zip(x.chunk(4), y.chunk(4)):
                loss = criterion(model(x), y)
                loss = loss * (len(x) / items)
                loss.backward()
            optimizer.step()
        """
    )


def test_a_step_in_a_function_of_its_own() -> None:
    source = textwrap.dedent(
        """\
        def step(model, optimizer, x, y, device, items=None):
            x = x.to(device)
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss
        """
    )
    assert parts_of(source, batch=KNOWN, parts=2, function="step") == textwrap.dedent(
        """\
        def step(model, optimizer, x, y, device, items=None):
            x = x.to(device)
            optimizer.zero_grad()
            items_2 = len(x)
            losses = []
            for x, y in zip(x.chunk(2), y.chunk(2)):
                loss = torch.nn.functional.cross_entropy(model(x), y)
                loss = loss * (len(x) / items_2)
                losses.append(loss.detach())
                loss.backward()
            loss = sum(losses)
            optimizer.step()
            return loss
        """
    )


def test_a_method_calls_what_its_object_has() -> None:
    source = textwrap.dedent(
        """\
        class Trainer:
            def train_step(self, batch):
                x, y = (each.to(self.device) for each in batch)
                self.optimizer.zero_grad()
                loss = self.criterion(self.net.model(x), y)
                loss.backward()
                self.optimizer.step()
        """
    )
    changed = parts_of(source, batch=KNOWN, function="Trainer.train_step")
    assert "            loss = self.criterion(self.net.model(x), y)\n" in changed
    assert "        for x, y in zip(x.chunk(3), y.chunk(3)):\n" in changed
    with pytest.raises(NotCertain, match="whether self has one row"):
        parts_of(source.replace("model(x)", "model(x, self.mask)"), batch=KNOWN, function="Trainer.train_step")


def test_a_scaler_gets_the_part_of_the_loss() -> None:
    source = textwrap.dedent(
        """\
        for x, y in data:
            loss = criterion(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
        """
    )
    changed = parts_of(source, batch=KNOWN)
    assert "        loss = loss * (len(x) / items)\n        scaler.scale(loss).backward()" in changed
    assert "\n    scaler.step(optimizer)" in changed


def test_accelerate_gets_the_part_of_the_loss() -> None:
    source = textwrap.dedent(
        """\
        for batch in loader:
            outputs = model(**batch)
            loss = outputs.loss
            accelerator.backward(loss)
            optimizer.step()
        """
    )
    changed = parts_of(source)
    pieces = "zip(*(value.chunk(3) for value in batch.values()))"
    assert f"    for batch in [dict(zip(batch, part)) for part in {pieces}]:" in changed
    share = "len(next(iter(batch.values()))) / items"
    assert f"        loss = loss * ({share})\n        accelerator.backward(loss)" in changed


NOT_CERTAIN = {
    "is read after": """
        for x, y in data:
            out = model(x)
            loss = criterion(out, y)
            loss.backward()
            optimizer.step()
            seen += (out.argmax(-1) == y).sum().item()
        """,
    "run once per part": """
        for x, y in data:
            loss = criterion(model(x), y)
            print(loss.item())
            loss.backward()
            optimizer.step()
        """,
    "`optimizer.step()` would run": """
        for x, y in data:
            loss = criterion(model(x), y)
            optimizer.step()
            loss.backward()
        """,
    "`seen += 1` would run once": """
        for x, y in data:
            loss = criterion(model(x), y)
            seen += 1
            loss.backward()
        """,
    "may be left": """
        for x, y in data:
            loss = criterion(model(x), y)
            if loss.isnan():
                continue
            loss.backward()
            optimizer.step()
        """,
    "is a sum": """
        for x, y in data:
            loss = F.cross_entropy(model(x), y, reduction="sum")
            loss.backward()
            optimizer.step()
        """,
    "whether mask has one row": """
        for x, y in data:
            mask = torch.ones(4, 4)
            loss = criterion(model(x, mask), y)
            loss.backward()
            optimizer.step()
        """,
    "a loop or a try": """
        for x, y in data:
            for noise in (0.0, 0.1):
                loss = criterion(model(x + noise), y)
            loss.backward()
            optimizer.step()
        """,
    "an object is modified": """
        for x, y in data:
            loss = criterion(model(x), y)
            history["loss"] = loss
            loss.backward()
            optimizer.step()
        """,
    "does not have the batch in a variable": """
        x, y = data[0]
        for step in range(3):
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
        """,
    "contains several statements": """
        for x, y in data:
            loss = criterion(model(x), y)
            optimizer.zero_grad(); loss.backward(); optimizer.step()
        """,
    "different blocks": """
        for x, y in data:
            if step % 2:
                loss = criterion(model(x), y)
            else:
                loss.backward()
        """,
}


@pytest.mark.parametrize(("said", "loop"), NOT_CERTAIN.items(), ids=NOT_CERTAIN.keys())
def test_where_nobody_can_be_certain(said: str, loop: str) -> None:
    with pytest.raises(NotCertain, match=re.escape(said)):
        parts_of(textwrap.dedent(loop), batch=KNOWN)


def test_a_closure_does_not_get_variables_of_its_own() -> None:
    """Names of the function around it would become the closure's, and be missing there."""
    source = textwrap.dedent(
        """\
        def train(model, x, y):
            def closure():
                loss = criterion(model(x), y)
                loss.backward()
                return loss
        """
    )
    with pytest.raises(NotCertain, match="does not have the batch in a variable"):
        parts_of(source, batch=KNOWN, function="train.<locals>.closure")
