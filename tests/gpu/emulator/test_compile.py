"""torch.compile on the emulated card: Inductor and Triton compile for it, CUDA graphs are captured and replayed."""

import os
import signal
import subprocess
import sys
from importlib.metadata import version as version_of
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.shared.commands import Predict, slow
from tests.shared.fresh import COMPILER_LATER, answer
from ullage.gpu.tracing.compiled import hurry_workers


@pytest.mark.parametrize("mode", ["default", pytest.param("reduce-overhead", marks=slow)])
def test_a_compiled_script_stands_beside_itself_without(predict: Predict, mode: str) -> None:
    ended = predict("compiles.py", mode, "--json")
    assert ended.code == 0, ended.error
    answer = ended.json
    assert answer["compiled_graphs"] == 1
    assert answer["unwritten"] == {}
    alone = predict("compiles.py", mode, "--json", "--no-beside-eager", TORCH_COMPILE_DISABLE="1").json
    assert alone["compiled_graphs"] == 0
    assert alone["eager"] is None
    assert answer["eager"] == {
        "verdict": "fits",
        "peak_allocated_bytes": alone["peak_allocated_bytes"],
        "peak_reserved_bytes": alone["peak_reserved_bytes"],
    }
    # Fusion saves activations on most versions (not on 2.15): GELU is computed again, its input alone is kept.
    last, last_alone = (each["steps"][-1]["peak_allocated_bytes"] for each in (answer, alone))
    assert last <= last_alone
    # Where Inductor chooses between kernels it measures them, which on 2.6 holds 256 MiB in the first step: Triton's
    # do_bench writes as much between two calls to empty the card's cache. Newer ones write as much as that cache holds.
    measures = version_of("torch").startswith("2.6.")
    assert answer["peak_allocated_bytes"] <= alone["peak_allocated_bytes"] + measures * (256 << 20)


@slow
def test_the_report_shows_both(predict: Predict) -> None:
    ended = predict("compiles.py", "default")
    assert ended.code == 0, ended.error
    assert "Peaks with torch.compile and without it" in ended.text
    assert "compiled, 1 graph" in ended.text


def test_without_a_c_compiler_one_sentence_says_what_to_do(
    predict: Predict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where ullage came as a wheel: it needs no compiler itself, Triton does."""
    monkeypatch.delenv("CC", raising=False)
    caches = {name: str(tmp_path / name) for name in ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")}
    ended = predict("compiles.py", "default", PATH=str(tmp_path), **caches)
    assert ended.code == 3
    (last,) = [line for line in ended.error.splitlines() if line.startswith("error: ")]
    assert "compiles.py cannot continue at line 12 of " in last
    assert "no C compiler; install gcc, or name a compiler in CC, or set TORCHDYNAMO_DISABLE=1" in last
    assert "Traceback" not in ended.error


def test_a_run_that_ends_before_its_workers_have_begun_leaves_no_folder(predict: Predict) -> None:
    """The fixture looks whether the folder for temporary files is empty."""
    ended = predict("leaves_a_worker.py", "--json")
    assert ended.code == 0, ended.error
    assert ended.json["verdict"] == "fits"


def test_a_worker_that_does_not_end_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        compiler = SimpleNamespace(_pool_set=[SimpleNamespace(process=process), SimpleNamespace()])
        monkeypatch.setitem(sys.modules, "torch._inductor.async_compile", compiler)
        hurry_workers()
        assert process.wait(300) is None
        process.kill()
        assert subprocess.Popen.wait(process) == -signal.SIGKILL


def test_a_process_of_the_tests_imports_the_compiler_when_it_is_used() -> None:
    """Until then an optimizer runs as it does untraced (tests/compiler_later), and afterwards as torch has it."""
    found = answer(
        """
        import sys, ullage
        ullage.emulate("T4")
        import torch
        layer = torch.nn.Linear(4, 4)
        optimizer = torch.optim.AdamW(layer.parameters())
        def step(function):
            function(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        step(layer)
        found = ["torch._dynamo.eval_frame" in sys.modules]
        step(torch.compile(layer, backend="eager"))
        found.append("torch._dynamo.eval_frame" in sys.modules)
        import torch._dynamo.config
        tell([*found, torch._dynamo.config.disable, torch._dynamo is sys.modules["torch._dynamo"]])
        """
    )
    assert found == ["ULLAGE_SLOW" in os.environ, True, False, True]


def test_a_module_of_the_compiler_is_loaded_once() -> None:
    """Whatever of it is imported first: of two there would be two counts of compiled graphs."""
    code = """
        import ullage
        ullage.emulate("T4")
        import torch
        import {first}
        import sys, torch._dynamo.output_graph, torch._dynamo.utils
        module = sys.modules[{first!r}]
        tell([
            torch._dynamo.output_graph.counters is torch._dynamo.utils.counters,
            {first} is module,
            module.__spec__.origin == module.__file__,
            sys.modules["torch._dynamo"] is torch._dynamo,
        ])
        """
    for first in ("torch._dynamo.utils", "torch._dynamo.config", "torch._dynamo.backends.tensorrt"):
        assert answer(code.format(first=first)) == [True] * 4


def test_a_prediction_is_the_same_with_the_compiler_imported_at_the_first_optimizer(predict: Predict) -> None:
    found = [predict("train.py", "--json", PYTHONPATH=path).json for path in ("", COMPILER_LATER["PYTHONPATH"])]
    for answer_of_one in found:
        del answer_of_one["seconds"], answer_of_one["host"]
    assert found[0] == found[1]
