"""Run tests of one file of PyTorch's on an emulated card, one after the other, and say on stdout how each ended.

python child.py FILE VALUES CARD            lists the tests
python child.py FILE VALUES CARD NAMES      runs those whose names (Class.test) stand in the file NAMES
"""

import importlib.util
import json
import os
import sys
import unittest
from pathlib import Path

import ullage


class _Result(unittest.TestResult):
    """Keeps how one test ended."""

    def __init__(self) -> None:
        super().__init__()
        self.how, self.why = "passed", ""

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self.how, self.why = "skipped", reason

    def addError(self, test: unittest.TestCase, err: tuple) -> None:  # type: ignore[override, type-arg]
        self.how, self.why = "failed", f"{err[0].__name__}: {err[1]}"

    addFailure = addError  # type: ignore[assignment]  # unittest's own name

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: tuple | None) -> None:  # type: ignore[override, type-arg]
        if err is not None:
            self.addError(test, err)


def main() -> None:
    """Do it."""
    path, values, card = Path(sys.argv[1]).resolve(), sys.argv[2], sys.argv[3]
    names = sys.argv[4:]
    said = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what tests print goes elsewhere
    ullage.emulate(card, values=values)
    sys.argv = [str(path)]
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    tests = {}
    for kind in vars(module).values():
        if isinstance(kind, type) and issubclass(kind, unittest.TestCase) and kind.__module__ == path.stem:
            for test in unittest.defaultTestLoader.loadTestsFromTestCase(kind):
                tests[f"{kind.__name__}.{test._testMethodName}"] = test
    if not names:
        said.write(json.dumps(list(tests)) + "\n")
        return
    for name in json.loads(Path(names[0]).read_text()):
        said.write(json.dumps({"begins": name}) + "\n")
        result = _Result()
        suite = unittest.TestSuite([tests[name]])
        suite.run(result)
        said.write(json.dumps({"name": name, "how": result.how, "why": result.why[:2000]}) + "\n")


if __name__ == "__main__":
    main()
