"""NVIDIA's cuDNN itself, asked through the emulated card; `make setup` fetches it, no GPU is needed."""

import importlib.util
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.forked import client
from tests.gpu.emulator.cudnn.conftest import SLOW
from tests.shared.fresh import answer
from ullage.gpu.emulator.cudnn.wheel import VARIABLE

ROOT = Path(__file__).parents[4]
MIB = 1 << 20
slow = pytest.mark.skipif(not SLOW, reason="minutes for more of a kind: ULLAGE_SLOW=1")
needs_torchvision = pytest.mark.skipif(
    not importlib.util.find_spec("torchvision"), reason="torchvision is not installed"
)
WIDEST = ("B200", "RTX 5090", "H100", "RTX 4090", "A100", "RTX 3090", "T4", "V100 16GB")


def asked(gpu: str, seed: int, count: int, mode: str, environment: dict[str, str]) -> dict[str, Any]:
    """Run `random_convolutions`, and read what it says."""
    words = [sys.executable, "-m", "tests.gpu.emulator.cudnn.random_convolutions", gpu, str(seed), str(count), mode]
    done = client.run(words, cwd=ROOT, env=os.environ | client.USUAL | environment, timeout=3600)
    assert done.returncode == 0, done.stderr[-3000:]
    said: dict[str, Any] = json.loads(done.stdout)
    return said


@pytest.mark.parametrize(
    ("gpu", "count", "benchmarks"),
    [("T4", 40, 8), ("H100", 20, 2), *(pytest.param(gpu, 500, 500, marks=slow) for gpu in WIDEST)],
)
def test_random_convolutions(gpu: str, count: int, benchmarks: int, with_cudnn: dict[str, str]) -> None:
    """Whatever its form, a convolution runs; where no plan is known the reason names it; benchmarks have an interval.

    The same problems run in three processes. With `benchmark` the same plans are kept each time, although PyTorch times
    them: which would win is not known here. Their bounds are those of all plans, and the one that is taken without
    `benchmark` is in between.
    """
    plain = asked(gpu, 1, count, "plain", with_cudnn)
    found = asked(gpu, 1, benchmarks, "benchmark", with_cudnn)
    assert found == asked(gpu, 1, benchmarks, "benchmark", with_cudnn)
    assert plain["raised"] == found["raised"] == []
    assert {source for source, *_ in plain["problems"].values()} <= {"cudnn", "table", "unknown"}
    assert sum(source == "cudnn" for source, *_ in plain["problems"].values()) > 0.9 * len(plain["problems"])
    for source, low, taken, high in plain["problems"].values():
        assert low == taken == high or source != "cudnn"
    others = sum(source != "cudnn" for source, *_ in plain["problems"].values())
    assert others == 0 or [reason for reason in plain["reasons"] if "convolution" in reason]
    assert found["problems"].keys() <= plain["problems"].keys()
    wide = 0
    for problem, (source, low, _, high) in found["problems"].items():
        assert source != "cudnn" or low <= plain["problems"][problem][2] <= high
        wide += low < high
    assert wide


def test_processes_on_one_cold_cache_agree(with_cudnn: dict[str, str]) -> None:
    """Two processes that begin at once on an empty folder, and a third that finds it full, have the same answers."""
    question = ("T4", 2, 8, "plain", with_cudnn)
    with ThreadPoolExecutor(2) as both:
        first, second = (each.result() for each in [both.submit(asked, *question) for _ in range(2)])
    assert len(first["problems"]) > 8
    assert first == second == asked(*question)


def test_what_is_on_disk_needs_no_cudnn(with_cudnn: dict[str, str]) -> None:
    """Answers that are kept are read without loading the library, and a question that is new loads it."""
    code = """
        import ullage
        ullage.emulate("T4")
        import torch
        from tests.gpu.emulator.cudnn.planners import planner_of
        from tests.gpu.emulator.cudnn.test_process import convolve
        from ullage.gpu.emulator import library

        def is_loaded():
            with open(f"/proc/{planner_of()}/maps") as maps:
                return "libcudnn.so" in maps.read()

        convolve(16)
        loaded = [is_loaded()]
        convolve(17)
        tell([*loaded, is_loaded(), list(library.cudnn_plans().by_source)])
    """
    only_one = code.replace("convolve(17)", "")
    assert answer(only_one, environment=with_cudnn) == [True, True, ["cudnn"]]
    assert answer(code, environment=with_cudnn) == [False, True, ["cudnn"]]


def test_a_planner_that_dies_costs_one_answer(with_cudnn: dict[str, str]) -> None:
    """PyTorch goes on with what is left of the answer, the reason is told, and the next problem is cuDNN's again."""
    sources, reasons = answer(
        """
        import os, signal, threading
        import ullage
        ullage.emulate("T4")
        import torch
        from tests.gpu.emulator.cudnn.planners import planner_of
        from tests.gpu.emulator.cudnn.test_process import convolve
        from ullage.gpu.emulator import library

        convolve(16)
        planner = planner_of()
        os.kill(planner, signal.SIGSTOP)
        threading.Timer(0.3, os.kill, (planner, signal.SIGKILL)).start()
        convolve(17)
        convolve(18)
        tell([[found.source for found in library.cudnn_problems()], library.cudnn_plans().reasons])
        """,
        environment=with_cudnn,
    )
    assert sources[0] == sources[2] == "cudnn"
    assert len(sources) == 3
    assert [reason for reason in reasons if "process ended" in reason]


def test_settings_choose_among_the_engines(with_cudnn: dict[str, str]) -> None:
    """Without TF32, and with deterministic engines only, PyTorch asks for fewer of cuDNN's plans."""
    asked = answer(
        """
        import os
        from pathlib import Path
        import ullage
        ullage.emulate("A100")
        import torch
        from ullage.gpu.emulator.cudnn.cache import default_folder

        def plans():
            texts = [path.read_text() for path in Path(default_folder()).glob("*/*/*")]
            return sum(text.startswith("plan ") and "workspace " in text for text in texts)

        torch.backends.cudnn.benchmark = True
        layer = torch.nn.Conv2d(64, 64, 3, padding=1, device="cuda")
        counts = []
        for tf32, deterministic in ((False, True), (False, False), (True, False)):
            torch.backends.cudnn.allow_tf32 = tf32
            torch.backends.cudnn.deterministic = deterministic
            layer(torch.empty(8, 64, 56, 56, device="cuda", requires_grad=True)).sum().backward()
            counts.append(plans())
        tell(counts)
        """,
        environment=with_cudnn,
    )
    assert 0 < asked[0] < asked[1] < asked[2]


# As cuDNN 9.19 (torch 2.11) has them; another version only has to have an answer.
ATTENTION = {"H100": 256, "A100": 32 * MIB + 128}


@pytest.mark.parametrize("gpu", ATTENTION)
def test_attention(gpu: str, with_cudnn: dict[str, str]) -> None:
    """cuDNN's attention, forward and backward, has cuDNN's own workspace."""
    cudnn_version, sources, largest, reasons = answer(
        f"""
        import ullage
        ullage.emulate("{gpu}")
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from ullage.gpu.emulator import library

        shape, form = (4, 16, 2048, 64), {{"device": "cuda", "dtype": torch.bfloat16, "requires_grad": True}}
        q, k, v = (torch.empty(shape, **form) for _ in range(3))
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()
        told = library.cudnn_plans()
        sources = {{source: figures.problems for source, figures in told.by_source.items()}}
        largest = max(figures.largest_workspace_bytes for figures in told.by_source.values())
        tell([torch.backends.cudnn.version(), sources, largest, told.reasons])
        """,
        environment=with_cudnn,
    )
    assert sources == {"cudnn": 2}, reasons
    assert largest == ATTENTION[gpu] or cudnn_version != 91900


def test_without_cudnn_it_is_said_once(tmp_path: Path) -> None:
    """The reason is told once for all problems, and nothing is kept on disk."""
    sources, reasons = answer(
        """
        import ullage
        ullage.emulate("T4")
        import torch
        from tests.gpu.emulator.cudnn.test_process import convolve
        from ullage.gpu.emulator import library
        for width in (16, 17, 18):
            convolve(width)
        told = library.cudnn_plans()
        tell([sorted({found.source for found in library.cudnn_problems()}), told.reasons])
        """,
        environment={"ULLAGE_CUDNN_CACHE": str(tmp_path / "answers"), VARIABLE: ""},
    )
    assert sources in (["table"], ["unknown"], ["table", "unknown"])
    assert reasons[0].startswith(
        "cuDNN is not installed with torch; for cuDNN's own plans: pip install --no-deps --target FOLDER "
    )
    assert len([reason for reason in reasons if "not installed" in reason]) == 1
    assert not (tmp_path / "answers").exists()


@needs_torchvision
@pytest.mark.parametrize("options", [["--quick", "--gpus", "T4"], pytest.param([], marks=slow)], ids=["two", "all"])
def test_workspaces_of_nets_are_those_that_cudnn_answers_to_their_shapes(
    options: list[str], with_cudnn: dict[str, str]
) -> None:
    """What torch was given for every layer is what an independent script is told that knows the shapes alone."""
    done = client.run(
        [sys.executable, "-m", "benchmarks.cudnn.compare", *options],
        cwd=ROOT,
        env=os.environ | client.USUAL | with_cudnn,
        timeout=3600,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "resnet18" in done.stdout


RESNET = """
import torch, torchvision
model = torchvision.models.resnet50().cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    model(torch.empty(32, 3, 224, 224, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@slow
@needs_torchvision
def test_a_cold_resnet50_costs_less_than_two_seconds_more(with_cudnn: dict[str, str], tmp_path: Path) -> None:
    """With nothing on disk, cuDNN's plans add less than two seconds to a prediction; the best of three pairs."""
    script = tmp_path / "resnet.py"
    script.write_text(RESNET)

    def seconds(environment: dict[str, str]) -> float:
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                TIMED,
                sys.executable,
                "-m",
                "ullage",
                "predict",
                "--gpu",
                "A100",
                "--json",
                str(script),
            ],
            env=os.environ | environment,
            capture_output=True,
            text=True,
            check=True,
            cwd=tmp_path,
        )
        took, out = done.stdout.split("\n", 1)
        assert ("cudnn" in json.loads(out)["cudnn"]["problems"]) == bool(environment[VARIABLE])
        return float(took)

    more = []
    for attempt in range(3):
        without = seconds({VARIABLE: ""})
        cold = seconds(with_cudnn | {"ULLAGE_CUDNN_CACHE": str(tmp_path / f"cold-{attempt}")})
        more.append(cold - without)
    assert min(more) < 2, more


TIMED = """
import subprocess, sys, time
start = time.perf_counter()
out = subprocess.run(sys.argv[1:], capture_output=True, text=True).stdout
print(time.perf_counter() - start)
print(out)
"""
