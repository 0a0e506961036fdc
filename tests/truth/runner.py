"""Measure workloads quickly: one process a card imports torch once, and forks a child for each workload.

Forking is sound because the parent never initialises CUDA: each child begins with a fresh allocator, as a process of
its own would. `Runner` is the side of the tests; `serve` is the process, `python -m tests.truth.runner CARD`.
It reads the names of workloads from standard input, and writes one JSON answer a line.
"""

import contextlib
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, Final

from tests.truth.record import CONTEXT_BYTES, Card

ROOT: Final = Path(__file__).resolve().parents[2]
STEPS: Final = 3
_LIMIT_SECONDS: Final = 900

# Imported before the fork, where they are installed, because each child would spend seconds on them.
_PACKAGES: Final = ("torchvision", "transformers")
_MODELS: Final = ("bert", "roberta", "gpt2", "llama")


class RunnerError(Exception):
    """The process of a card ended before it answered."""


class Runner:
    """The process of one card, until `close`."""

    def __init__(self, card: Card) -> None:
        self.card = card
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  closed in close()
        environment = {name: value for name, value in os.environ.items() if not name.endswith("_ALLOC_CONF")}
        environment.pop("ULLAGE_EMULATED_CARD", None)
        environment["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # asking whether there is a card must not initialise CUDA
        if card.alloc_conf:
            environment["PYTORCH_CUDA_ALLOC_CONF"] = card.alloc_conf
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.truth.runner", json.dumps(asdict(card))],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
            text=True,
            bufsize=1,
        )

    def __enter__(self) -> "Runner":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._errors.close()

    def measure(self, name: str) -> dict[str, Any]:
        """Run one workload in a fresh child: its counters by moment, or `{"error": text}`.

        Raises:
            RunnerError: the process of the card itself has ended.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(name + "\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            self._errors.seek(0)
            said = self._errors.read().decode(errors="replace")
            raise RunnerError(
                f"the process of {self.card.gpu} ended with code {code} before {name} was measured:\n{said}"
            )
        answer: dict[str, Any] = json.loads(line)
        return answer


# ---- the process of a card


def in_child(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Fork, do the work in the child, and return its answer; `{"error": text}` if it raises, dies or hangs."""
    read_end, write_end = os.pipe()
    with tempfile.TemporaryFile() as errors:
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if child == 0:
            _be_child(work, write_end, errors.fileno())
        os.close(write_end)
        answer, in_time = _read_all(read_end)
        os.close(read_end)
        if not in_time:
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        errors.seek(0)
        said = errors.read().decode(errors="replace")
    code = os.waitstatus_to_exitcode(status)
    if in_time and code == 0:
        measured: dict[str, Any] = json.loads(answer)
        return measured
    how = f"ended with signal {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    if not in_time:
        how = f"did not answer within {_LIMIT_SECONDS:g} s"
    return {"error": f"the child {how}:\n{said}"}


def _be_child(work: Callable[[], dict[str, Any]], write_end: int, errors: int) -> None:
    """Do the work and leave without Python's exit, which belongs to the parent."""
    code = 1
    try:
        os.dup2(errors, 2)
        data = json.dumps(work()).encode()
        while data:
            data = data[os.write(write_end, data) :]
        code = 0
    except BaseException:
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)


def _read_all(read_end: int) -> tuple[bytes, bool]:
    """Read until the writer closes its end; False if it takes too long."""
    data = b""
    while True:
        ready, _, _ = select.select([read_end], [], [], _LIMIT_SECONDS)
        if not ready:
            return data, False
        more = os.read(read_end, 1 << 16)
        if not more:
            return data, True
        data += more


def measure(name: str) -> dict[str, Any]:
    """Build and train a workload in this process, as the records were made."""
    import torch

    from tests.truth.workloads import build

    torch.manual_seed(0)
    trainer = build(name, "cuda")
    moments = {"build": torch.cuda.memory_stats()}
    oom = None
    for number in range(STEPS):
        torch.cuda.reset_peak_memory_stats()
        try:
            trainer.step(number)
        except torch.cuda.OutOfMemoryError as error:
            oom = str(error)
            moments["out of memory"] = torch.cuda.memory_stats()
            break
        moments[f"step {number + 1}"] = torch.cuda.memory_stats()
    _, total = torch.cuda.mem_get_info()
    parameters = list(trainer.model.parameters())
    return {
        "gpu": torch.cuda.get_device_name(),
        "total": total,
        "cc": torch.cuda.get_device_capability(),
        "torch": torch.__version__,
        "cudnn": torch.backends.cudnn.version(),
        "param_bytes": _bytes_on_card(parameters),
        "trainable_bytes": _bytes_on_card(parameter for parameter in parameters if parameter.requires_grad),
        "buffer_bytes": _bytes_on_card(trainer.model.buffers()),
        "optimizer_bytes": _bytes_on_card(_state_of(trainer.optimizer)),
        "oom": oom,
        "moments": moments,
        "unwritten": _unwritten(),
    }


def _bytes_on_card(tensors: Iterable[Any]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors if tensor.is_cuda)


def _state_of(optimizer: Any) -> list[Any]:
    states = optimizer.state.values() if optimizer is not None else ()
    return [value for state in states for value in state.values() if hasattr(value, "is_cuda")]


def _unwritten() -> dict[str, int]:
    from ullage.gpu.emulator import library

    return library.unwritten_functions()


def _import_packages() -> None:
    for package in _PACKAGES:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(package)
    if "transformers" in sys.modules:
        for model in _MODELS:
            importlib.import_module(f"transformers.models.{model}.modeling_{model}")


def serve(card: Card) -> None:
    """Answer requests from standard input until it ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # nothing that a library prints is taken for an answer
    import ullage

    ullage.emulate(
        card.gpu,
        total_memory_bytes=card.total,
        context_bytes=CONTEXT_BYTES,
        cudnn_workspace_bytes=0,
        placement="windows",  # the records' emulator puts segments one above the other, too
    )
    importlib.import_module("torch._dynamo")  # every optimizer's first step would import it
    importlib.import_module("tests.truth.workloads")
    _import_packages()
    for line in sys.stdin:
        name = line.strip()
        answers.write(json.dumps(in_child(lambda name=name: measure(name))) + "\n")


if __name__ == "__main__":
    request = json.loads(sys.argv[1])
    serve(Card(**{**request, "cc": tuple(request["cc"])}))
