"""What a prediction costs, against its bounds: `make bench`. Exits 1 past a bound.

Times on a busy machine are noisy, so what has to be compared is measured in the same run and told as a ratio.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from figure import Measured

HERE = Path(__file__).resolve().parent
GPT2 = HERE.parent / "examples" / "train_gpt2.py"
LLAMA = HERE / "scripts" / "llama.py"
STEP = HERE / "scripts" / "gpt2_step.py"
GIB = 1 << 30


def predict(*arguments: str) -> tuple[dict, float, float]:
    """Run `ullage predict --json`: its answer, the seconds of the whole command, the largest host memory in GiB."""
    command = [sys.executable, "-m", "ullage", "predict", *arguments, "--json"]
    began = time.perf_counter()
    with tempfile.TemporaryFile() as answer, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, stdout=answer, stderr=errors)
        _, status, usage = os.wait4(process.pid, 0)  # the command's and, through it, the script's
        seconds = time.perf_counter() - began
        answer.seek(0)
        errors.seek(0)
        if os.waitstatus_to_exitcode(status) not in (0, 1, 4):
            sys.exit(f"predict {' '.join(arguments)} failed:\n{errors.read().decode()}")
        return json.load(answer), seconds, usage.ru_maxrss * 1024 / GIB


def fastest_tenth(times: list[float]) -> float:
    """What the same work takes when nothing else runs: other work on the machine only adds."""
    return sorted(times)[len(times) // 10]


def step_ms(mode: str, steps: int) -> float:
    done = subprocess.run([sys.executable, str(STEP), mode, str(steps)], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"gpt2_step.py {mode} failed:\n{done.stderr}")
    return float(done.stdout.split()[-1])


def closed_form_gap(answer: dict, bytes_per_value: int) -> float:
    """Parameters, gradients and optimizer state together against 4 times the parameters (AdamW): the relative gap."""
    peaks = answer["role_peaks"]
    together = peaks["parameters"] + peaks["gradients"] + peaks["optimizer_state"]
    values = {"7b": 6_738_415_616, "70b": 68_976_648_192}[answer["arguments"][0]]
    return abs(together / (values * bytes_per_value * 4) - 1)


def where_it_goes(answer: dict, seconds: float) -> list[Measured]:
    """The parts of a predict command; the first step has the script's own imports, and those that torch puts off."""
    parts = dict(answer["seconds"])
    total, imports = parts.pop("total"), parts.pop("import")
    first, later = parts.pop("step_1"), sum(parts.values())
    rest = total - imports - first - later
    return [
        Measured("  of these: `import torch`", imports, "s"),
        Measured("  the script to the end of its first step", first, "s"),
        Measured("  its other steps", later, "s"),
        Measured("  starting its process, emulating the card, and what is measured at the end", rest, "s"),
        Measured("  the command itself: Python, imports, the report", seconds - total, "s"),
        Measured("  the last two together", rest + seconds - total, "s", 1.0),
    ]


def measurements() -> list[Measured]:
    predict(str(GPT2), "--gpu", "RTX 4090")  # warms the disk cache
    answer, seconds, _ = predict(str(GPT2), "--gpu", "RTX 4090")
    found = [Measured("GPT-2 small, 3 steps: the whole command", seconds, "s", 12.0), *where_it_goes(answer, seconds)]
    answer, _, _ = predict(str(GPT2), "--gpu", "RTX 4090", "--steps", "40")
    steps = [value for name, value in answer["seconds"].items() if name.startswith("step_")][2:]
    recorded = fastest_tenth(steps) * 1000
    median = statistics.median(steps) * 1000
    plain = step_ms("emulated", 40)
    found += [
        Measured("GPT-2 small: a step with roles and stacks recorded, fastest tenth", recorded, "ms"),
        Measured("GPT-2 small: the same, median", median, "ms", 30.0),
        Measured("GPT-2 small: a step without (the floor: PyTorch's host cost), fastest tenth", plain, "ms"),
        Measured("ratio recorded / floor", recorded / plain, "x"),
        Measured("ratio FakeTensorMode / recorded", step_ms("fake", 4) / recorded, "x"),
    ]
    if not os.environ.get("ULLAGE_BENCH_NO_CPU"):
        found.append(Measured("ratio CPU / recorded", step_ms("cpu", 1) / recorded, "x"))
    for size, card, bound in (("7b", "H100", 30.0), ("70b", "2TiB", 60.0)):
        answer, seconds, host = predict(str(LLAMA), size, "--gpu", card)
        found += [
            Measured(f"Llama {size} built on the device, 3 steps on {card}", seconds, "s", bound),
            Measured(f"Llama {size}: host memory", host, "GiB", 2.0),
            Measured(
                f"Llama {size}: parameters, gradients, state against the closed form",
                100 * closed_form_gap(answer, 2),
                "%",
                2.0,
            ),
        ]
    return found


def main() -> None:
    found = measurements()
    for measured in found:
        print(measured)
    sys.exit(0 if all(measured.kept for measured in found) else 1)


if __name__ == "__main__":
    main()
