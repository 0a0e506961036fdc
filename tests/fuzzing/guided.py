"""Coverage-guided fuzzing of one reader by atheris: `python -m tests.fuzzing.guided READER [libFuzzer's options]`.

Inputs that reach new lines of ullage's Python are kept and changed further. What is wrong is told by the same rules as
everywhere here. atheris is not among the project's requirements: `make fuzz-readers` installs it beside them.
"""

import random
import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["ullage"]):
    from tests.fuzzing.campaign import environment_is_clean
    from tests.fuzzing.judgement import judge
    from tests.fuzzing.mutation import damage_bytes
    from tests.fuzzing.readers import READERS, Reader

_COMMANDS = 16  # more than any reader chooses among


def _import_all(reader: Reader, scratch: Path) -> None:
    """Have every command import what it needs: only what is imported in here is seen by the fuzzer."""
    with atheris.instrument_imports(include=["ullage"]):
        for choice in range(_COMMANDS):
            for _ in reader.read(reader.examples()[0], scratch, choice):
                pass


def main() -> None:
    """Run the command line."""
    reader = READERS[sys.argv[1]]
    environment_is_clean()
    with tempfile.TemporaryDirectory(prefix="ullage-fuzz-") as folder:
        scratch, corpus = Path(folder, "scratch"), Path(folder, "corpus")
        scratch.mkdir()
        corpus.mkdir()
        _import_all(reader, scratch)
        for number, example in enumerate(reader.examples()):
            (corpus / str(number)).write_bytes(example)

        def read(data: bytes) -> None:
            if found := judge(reader, data, scratch).findings:
                raise AssertionError("\n".join(found))

        def mutate(data: bytes, most: int, seed: int) -> bytes:
            chance = random.Random(seed)
            try:
                return reader.change(data, chance)[:most]
            except Exception:  # it is no longer what its kind begins with
                return damage_bytes(data, chance)[:most]

        longest = max(len(example) for example in reader.examples())
        atheris.Setup(
            [sys.argv[0], f"-max_len={2 * longest + 4096}", *sys.argv[2:], str(corpus)], read, custom_mutator=mutate
        )
        atheris.Fuzz()


if __name__ == "__main__":
    main()
