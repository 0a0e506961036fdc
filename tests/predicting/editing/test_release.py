"""`del` behind the last use: where it goes, and where nobody can be certain."""

import re
import textwrap

import pytest

from ullage.predicting.editing.apply import edited
from ullage.predicting.editing.edit import NotCertain
from ullage.predicting.editing.release import released


def let_go(source: str, *names: str, function: str = "<module>") -> str:
    """Edit a source; the line that gives a variable its value is the first that begins with `name =` or holds it so."""
    source = textwrap.dedent(source)
    lines = list(enumerate(source.splitlines(), 1))
    given = {name: re.compile(rf"^ +.*\b{name}\b[^=(]*(=[^=]|:=)") for name in names}
    found = {name: next(number for number, line in lines if given[name].search(line)) for name in names}
    return edited(source, released(source, file="", function=function, lines=found))


PLACED = {
    "behind the last statement that reads it": (
        """
        for x in data:
            logits = model(x)
            loss = logits.mean()
            loss.backward()
            optimizer.step()
        """,
        """
        for x in data:
            logits = model(x)
            loss = logits.mean()
            del logits
            loss.backward()
            del loss
            optimizer.step()
        """,
        ("logits", "loss"),
    ),
    "both at one place": (
        """
        for x in data:
            logits = model(x)
            loss = logits.mean()
            print(loss, logits)
        """,
        """
        for x in data:
            logits = model(x)
            loss = logits.mean()
            print(loss, logits)
            del logits, loss
        """,
        ("logits", "loss"),
    ),
    "in a with": (
        """
        for x in data:
            with autocast():
                logits = model(x)
                loss = logits.mean()
            loss.backward()
            optimizer.step()
        """,
        """
        for x in data:
            with autocast():
                logits = model(x)
                loss = logits.mean()
                del logits
            loss.backward()
            del loss
            optimizer.step()
        """,
        ("logits", "loss"),
    ),
    "nested loops": (
        """
        for epoch in range(3):
            for x in data:
                loss = model(x)
                loss.backward()
            evaluate()
        """,
        """
        for epoch in range(3):
            for x in data:
                loss = model(x)
                loss.backward()
                del loss
            evaluate()
        """,
        ("loss",),
    ),
    "read behind the inner loop": (
        """
        for epoch in range(3):
            for x in data:
                loss = model(x)
                loss.backward()
            print(loss)
        """,
        None,  # an epoch without a turn would print that of the epoch before
        ("loss",),
    ),
    "both branches": (
        """
        for x in data:
            if x.ok:
                loss = model(x)
            else:
                loss = other(x)
            loss.backward()
            optimizer.step()
        """,
        """
        for x in data:
            if x.ok:
                loss = model(x)
            else:
                loss = other(x)
            loss.backward()
            del loss
            optimizer.step()
        """,
        ("loss",),
    ),
    "one branch alone": (
        """
        for x in data:
            if x.ok:
                loss = model(x)
                loss.backward()
            optimizer.step()
        """,
        """
        for x in data:
            if x.ok:
                loss = model(x)
                loss.backward()
                del loss
            optimizer.step()
        """,
        ("loss",),
    ),
    "a branch that reads it last": (
        """
        for step, x in enumerate(data):
            loss = model(x)
            loss.backward()
            if step % 10 == 0:
                print(loss.item())
            optimizer.step()
        """,
        """
        for step, x in enumerate(data):
            loss = model(x)
            loss.backward()
            if step % 10 == 0:
                print(loss.item())
            del loss
            optimizer.step()
        """,
        ("loss",),
    ),
    "a try": (
        """
        for x in data:
            try:
                loss = model(x)
                loss.backward()
            except RuntimeError:
                pass
            else:
                print(loss)
            optimizer.step()
        """,
        """
        for x in data:
            try:
                loss = model(x)
                loss.backward()
            except RuntimeError:
                pass
            else:
                print(loss)
            loss = None
            optimizer.step()
        """,
        ("loss",),
    ),
    "a try that holds all of it": (
        """
        for x in data:
            try:
                loss = model(x)
                loss.backward()
            except RuntimeError:
                pass
        """,
        """
        for x in data:
            try:
                loss = model(x)
                loss.backward()
                del loss
            except RuntimeError:
                pass
        """,
        ("loss",),
    ),
    "a comprehension reads it": (
        """
        while True:
            outputs = model(x)
            parts = [each.mean() for each in outputs]
            sum(parts).backward()
        """,
        """
        while True:
            outputs = model(x)
            parts = [each.mean() for each in outputs]
            del outputs
            sum(parts).backward()
            del parts
        """,
        ("outputs", "parts"),
    ),
    "a tuple": (
        """
        for x in data:
            logits, hidden = model(x)
            logits.mean().backward()
            optimizer.step()
        """,
        """
        for x in data:
            logits, hidden = model(x)
            del hidden
            logits.mean().backward()
            del logits
            optimizer.step()
        """,
        ("logits", "hidden"),
    ),
    "the loop of its own name elsewhere": (
        """
        for x in data:
            loss = model(x)
            loss.backward()
        for x in data:
            loss = other(x)
        """,
        """
        for x in data:
            loss = model(x)
            loss.backward()
            del loss
        for x in data:
            loss = other(x)
        """,
        ("loss",),
    ),
    "a statement of several lines": (
        """
        for x in data:
            loss = model(
                x,
            )
            print(
                loss,
            )
            optimizer.step()
        """,
        """
        for x in data:
            loss = model(
                x,
            )
            print(
                loss,
            )
            del loss
            optimizer.step()
        """,
        ("loss",),
    ),
    "a turn that is left early": (
        """
        for x in data:
            loss = model(x)
            if loss.isnan():
                continue
            loss.backward()
        """,
        """
        for x in data:
            loss = model(x)
            if loss.isnan():
                continue
            loss.backward()
            del loss
        """,
        ("loss",),
    ),
    "an inner loop over it": (
        """
        for x in data:
            outputs = model(x)
            for each in outputs:
                each.backward()
            optimizer.step()
        """,
        """
        for x in data:
            outputs = model(x)
            for each in outputs:
                each.backward()
            del outputs
            optimizer.step()
        """,
        ("outputs",),
    ),
    "added to in the loop": (
        """
        for x in data:
            loss = model(x)
            loss += penalty()
            loss.backward()
        """,
        """
        for x in data:
            loss = model(x)
            loss += penalty()
            loss.backward()
            del loss
        """,
        ("loss",),
    ),
    "a comprehension's own variable": (
        """
        for x in data:
            loss = model(x)
            loss.backward()
        total = sum(loss for loss in range(3))
        """,
        None,
        ("loss",),
    ),
}


@pytest.mark.parametrize(("before", "after", "names"), PLACED.values(), ids=PLACED.keys())
def test_where_it_goes(before: str, after: str | None, names: tuple[str, ...]) -> None:
    if after is None:  # certain would be right too: to refuse is safe
        with pytest.raises(NotCertain):
            let_go(before, *names)
        return
    assert let_go(before, *names) == textwrap.dedent(after)


NOT_CERTAIN = {
    "again after its last use": """
        for x in data:
            try:
                loss = model(x)
                loss.backward()
            except RuntimeError:
                print(loss)
        """,
    "may be read again": """
        for x in data:
            loss = model(x)
            loss.backward()
        print(loss)
        """,
    "may be read again after": """
        loss = None
        for x in data:
            if loss is not None:
                print(loss)
            loss = model(x)
            loss.backward()
        """,
    "other functions read loss": """
        def show():
            print(loss)
        for x in data:
            loss = model(x)
            loss.backward()
        """,
    "other functions read": """
        for x in data:
            loss = model(x)
            callbacks.append(lambda: loss)
        """,
    "is not in a loop": """
        if True:
            loss = model(x)
            loss.backward()
        """,
    "deleted already": """
        for x in data:
            loss = model(x)
            loss.backward()
            del loss
        """,
    "the object that the loop iterates over": """
        for loss in losses:
            loss = loss + 1
            loss.backward()
        """,
    "ends with the last use": """
        def train():
            for x in data:
                loss = model(x)
                return loss
        """,
    "read again": """
        for x in data:
            ema = 0.9 * ema + model(x)
        """,
    "may be read": """
        while True:
            loss = model(x)
            loss.backward()
            if done:
                break
        else:
            pass
        save(loss)
        """,
    "functions read": """
        for x in data:
            loss = model(x)
            print(locals())
        """,
}


@pytest.mark.parametrize(("said", "source"), NOT_CERTAIN.items(), ids=NOT_CERTAIN.keys())
def test_where_nobody_can_be_certain(said: str, source: str) -> None:
    function = "train" if "def train" in source else "<module>"
    with pytest.raises(NotCertain, match=said):
        let_go(source, "ema" if "ema" in source else "loss", function=function)


def test_only_variables() -> None:
    with pytest.raises(NotCertain, match=r"self\.loss is not a variable"):
        released("for x in y:\n    self.loss = x\n", file="", function="<module>", lines={"self.loss": 2})


def test_a_global_of_the_function_is_not_its_own() -> None:
    source = """
        def train():
            global loss
            for x in data:
                loss = model(x)
        """
    with pytest.raises(NotCertain, match="other functions read loss"):
        let_go(source, "loss", function="train")


def test_methods_and_functions_inside_are_found_by_their_names() -> None:
    source = """
        class Trainer:
            def fit(self):
                def one():
                    for x in self.data:
                        loss = self.model(x)
                        loss.backward()
                one()
        """
    changed = let_go(source, "loss", function="Trainer.fit.<locals>.one")
    assert changed == textwrap.dedent(source).replace(
        "                loss.backward()\n", "                loss.backward()\n                del loss\n"
    )


def test_two_functions_of_one_name() -> None:
    source = "def f():\n    for x in y:\n        loss = x\ndef f():\n    pass\n"
    with pytest.raises(NotCertain, match=r"has no function f, or several"):
        released(source, file="", function="f", lines={"loss": 3})
