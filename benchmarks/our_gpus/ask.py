"""Answer one question in this process: `python -m benchmarks.our_gpus.ask QUESTION --answer FILE`.

The answer is written to FILE, because libraries print what they like. `measure.py` starts this.
"""

import argparse
import json
import os
import sys
from pathlib import Path

from .plan import all_questions, family_of
from .question import GpuUnderTest, Question

# The first import of torch on a cold machine may take minutes.
FACTS = Question(name="gpu/facts", about="the GPU, its driver and the installed packages", seconds=5, limit_seconds=300)


def main() -> None:
    """Measure, and write the answer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("question")
    parser.add_argument("--answer", type=Path, required=True)
    parser.add_argument("--emulate", default="")
    parser.add_argument("--total", type=int)
    options = parser.parse_args()
    question = next(each for each in (FACTS, *all_questions()) if each.name == options.question)
    gpu = GpuUnderTest(emulated=options.emulate, total_memory_bytes=options.total)
    family = family_of(question.name)
    if not getattr(family, "EMULATES_ITSELF", False):
        gpu.emulate_here()
    answer = family.answer(question, gpu)
    part = options.answer.with_suffix(".part")
    part.write_text(json.dumps(answer), encoding="utf-8")
    part.replace(options.answer)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # what libraries do at the end of a process may take long, or fail, and answers nothing


if __name__ == "__main__":
    main()
