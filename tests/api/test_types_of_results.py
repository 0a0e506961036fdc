"""Every type that a field of a public result can have is exported, and named by one module only."""

import subprocess
import sys

import ullage
import ullage.result_types

WALK = """
import ullage
ullage.emulate("T4")
import dataclasses, typing
import ullage.result_types

public = {getattr(ullage, name) for name in ullage.__all__}
exported = public | {getattr(ullage.result_types, name) for name in ullage.result_types.__all__}
found, waiting = set(), [one for one in public if isinstance(one, type) and not issubclass(one, Exception)]


def types_in(hint):
    if isinstance(hint, type) and not typing.get_args(hint):
        yield hint
    for each in typing.get_args(hint):
        yield from types_in(each)


while waiting:
    one = waiting.pop()
    if one in found or not (one.__module__ == "ullage" or one.__module__.startswith("ullage.")):
        continue
    found.add(one)
    hints = dict(typing.get_type_hints(one))
    for name, value in vars(one).items():
        if isinstance(value, property):
            hints[name] = typing.get_type_hints(value.fget).get("return")
    waiting += [each for name, hint in hints.items() if not name.startswith("_") for each in types_in(hint)]

print(len(found), *sorted(f"{one.__module__}.{one.__qualname__}" for one in found - exported))
"""


def test_every_type_inside_a_result_is_exported() -> None:
    done = subprocess.run([sys.executable, "-c", WALK], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    number, *missing = done.stdout.split()
    assert int(number) > 100, "the walk finds the types of fields"
    assert missing == [], "list these in src/ullage/result_types.pyi"


def test_no_name_is_exported_twice() -> None:
    assert not set(ullage.__all__) & set(ullage.result_types.__all__)


def test_importing_the_types_is_quick() -> None:
    code = "import ullage.result_types, sys; print('torch' in sys.modules, 'ullage.predicting' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
