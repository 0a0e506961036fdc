"""What is seen: the real /proc, real processes, the emulated card's driver, and torch's own allocator."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.forked import client
from tests.shared.inside import inside
from ullage.base.errors import UnknownGpuError, UsageError
from ullage.base.units import GIB, MIB
from ullage.running.diagnosis.diagnosis import Diagnosis, diagnose
from ullage.running.diagnosis.gather import gather_facts
from ullage.running.diagnosis.host import available_bytes, read_host
from ullage.running.diagnosis.process import is_alive, process_of


def kept() -> dict[str, str]:
    """The environment without what the doctor judges."""
    return {name: text for name, text in os.environ.items() if not name.startswith(("PYTORCH_", "CUDA_", "NCCL_"))}


def doctor(*arguments: str, **variables: str) -> tuple[int, str, str]:
    """Run `ullage doctor`; the exit code and both streams."""
    done = client.run(
        [sys.executable, "-m", "ullage", "doctor", *arguments],
        env=kept() | {"COLUMNS": "120"} | variables,
        timeout=900,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Diagnosis]:
    """Diagnose from this process, which has no torch, with variables."""

    def run(gpu: str | None = None, **variables: str) -> Diagnosis:
        for name in set(os.environ) - set(kept()):
            monkeypatch.delenv(name)
        for name, text in variables.items():
            monkeypatch.setenv(name, text)
        return diagnose(gpu)

    return run


def names_of(answer: dict[str, Any]) -> set[str]:
    return {finding["name"] for finding in answer["findings"]} - {"shared-memory-small", "container-full"}


# ---- with the emulated card and the real allocator


def test_an_emulated_card_is_told_and_two_variables_that_differ() -> None:
    """--json is all of standard output; the settings are those that the allocator says it has read."""
    code, out, error = doctor(
        "--gpu", "T4", "--json", PYTORCH_CUDA_ALLOC_CONF="max_split_size_mb:64", PYTORCH_ALLOC_CONF="backend:native"
    )
    assert code == 1, error
    answer = json.loads(out)
    assert (answer["schema"], answer["settings"]) == (1, "max_split_size_mb:64")
    assert names_of(answer) == {"settings-ignored"}
    [card] = answer["cards"]
    assert (card["name"], card["compute_capability"]) == ("Tesla T4", [7, 5])
    assert card["processes"] == []
    assert answer["torch"]["architectures"]


def test_a_text_that_torch_refuses_is_told_in_its_words(here: Callable[..., Diagnosis]) -> None:
    diagnosis = here("T4", PYTORCH_CUDA_ALLOC_CONF="no_such_option:True")
    assert diagnosis.facts.torch is not None
    assert "no_such_option" in (diagnosis.facts.torch.settings_error or "")
    assert "settings-refused" in {finding.name for finding in diagnosis.problems}


def test_a_text_that_ends_torch_is_one_finding(here: Callable[..., Diagnosis]) -> None:
    """Torch cannot be imported then, and nothing is wrong with its installation."""
    diagnosis = here("T4", PYTORCH_ALLOC_CONF="max_split_size_mb")
    names = {finding.name for finding in diagnosis.problems}
    assert "settings-refused" in names
    assert not [name for name in names if "torch" in name], names


@inside
def test_a_variable_that_is_set_too_late_is_told_and_cuda_stays_untouched() -> None:
    """In a process that has torch, this process is asked: the allocator keeps what it has read before."""
    import torch

    os.environ.pop("PYTORCH_CUDA_ALLOC_CONF", None)
    before = diagnose()
    assert "settings-ignored" not in {finding.name for finding in before.findings}
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    late = {finding.name: finding for finding in diagnose().findings}
    assert "reads the variable once" in late["settings-ignored"].why
    assert not torch.cuda.is_initialized()
    assert late["settings-ignored"].seen.endswith("no setting is in force")
    torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
    assert "settings-ignored" not in {finding.name for finding in diagnose().findings}


@inside
def test_pinned_memory_is_read_where_cuda_is_in_use() -> None:
    """What the host's allocator holds, with its rounding to powers of two."""
    import torch

    pinned = torch.empty(3 * MIB, dtype=torch.uint8).pin_memory()
    seen = gather_facts().torch
    assert pinned.is_pinned()
    assert seen is not None
    assert seen.pinned_bytes == 4 * MIB


@inside
def test_a_card_is_not_emulated_where_torch_is() -> None:
    with pytest.raises(UsageError, match="this process has already imported torch"):
        gather_facts("T4")


# ---- without


def test_it_works_without_torch_and_without_a_card(tmp_path: Path) -> None:
    """Settings are judged by the grammar then; --gpu needs torch and says so."""
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['torch'] = None\n")
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    code, out, error = doctor("--json", PYTHONPATH=path, PYTORCH_ALLOC_CONF="expandable_segments:yes")
    assert code == 1, error
    answer = json.loads(out)
    assert answer["torch"] is None
    assert names_of(answer) - {"others"} == {"settings-refused"}
    code, out, error = doctor("--gpu", "T4", PYTHONPATH=path)
    assert (code, out) == (4, "")
    assert error.startswith("error: PyTorch is not installed")


def test_a_torch_that_cannot_be_imported_is_a_finding(here: Callable[..., Diagnosis], tmp_path: Path) -> None:
    """Its own last line is shown."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('libcudart.so.13 is not there')\n")
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    diagnosis = here(PYTHONPATH=path)
    assert diagnosis.facts.torch is not None
    assert diagnosis.facts.torch.error == "ImportError: libcudart.so.13 is not there"
    assert "torch-fails" in {finding.name for finding in diagnosis.problems}


def test_an_unknown_card_is_refused(here: Callable[..., Diagnosis]) -> None:
    with pytest.raises(UnknownGpuError, match="no GPU named 'RTX 4900' is known"):
        here("RTX 4900")


# ---- processes


def test_a_process_whose_parent_has_ended_is_an_orphan() -> None:
    """A child of a process that leads its group, and that ended; beside it a child whose parent lives."""
    begin = "import os, sys, time\nif os.fork(): os._exit(0)\nprint(os.getpid(), flush=True)\nsys.stdin.read()"
    starter = subprocess.Popen(
        [sys.executable, "-c", begin], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        starter.wait(timeout=900)
        deadline = time.monotonic() + 900
        while not process_of(pid, MIB).is_orphan and time.monotonic() < deadline:
            time.sleep(0.01)
        seen = process_of(pid, MIB)
        assert (seen.pid, seen.used_bytes, seen.is_ours, seen.is_orphan, seen.is_worker) == (
            pid,
            MIB,
            True,
            True,
            False,
        )
    finally:
        assert starter.stdin is not None
        starter.stdin.close()  # its end is the orphan's
        assert starter.stdout is not None
        starter.stdout.close()


def test_a_process_is_alive_until_it_ends_and_one_that_began_later_is_another() -> None:
    """A zombie, which nobody has waited for, has ended."""
    assert is_alive(os.getpid())
    assert is_alive(os.getpid(), time.time())
    assert not is_alive(os.getpid(), time.time() - 1e6)
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert Path(f"/proc/{process.pid}").exists()
        assert not is_alive(process.pid)
    assert not is_alive(process.pid)


def test_a_loaders_worker_is_known_by_its_name() -> None:
    """One whose training lives is no orphan; a process that is not there has no name and is not ours."""
    code = "import sys; open('/proc/self/comm', 'w').write('pt_data_worker'); print(flush=True); sys.stdin.read()"
    worker = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert worker.stdout is not None
    worker.stdout.readline()
    seen = process_of(worker.pid, None)
    worker.communicate("")
    assert (seen.name, seen.is_worker, seen.is_orphan, seen.is_ours) == ("pt_data_worker", True, False, True)
    gone = process_of(worker.pid, 5)
    assert (gone.name, gone.is_ours, gone.is_orphan, gone.used_bytes) == ("", False, False, 5)


# ---- the host


def made(root: Path, files: dict[str, str]) -> Path:
    """A file system's root with files."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    "files",
    [
        {
            "proc/self/cgroup": "0::/job/step\n",
            "sys/fs/cgroup/job/memory.max": f"{8 * GIB}\n",
            "sys/fs/cgroup/job/memory.current": f"{5 * GIB}\n",
            "sys/fs/cgroup/job/memory.stat": f"anon 1\ninactive_file {GIB}\n",
            "sys/fs/cgroup/job/step/memory.max": "max\n",
            "sys/fs/cgroup/job/step/memory.current": "7\n",
        },
        {
            "proc/self/cgroup": "5:cpu,cpuacct:/\n4:memory:/docker/abc\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{8 * GIB}\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{5 * GIB}\n",
            "sys/fs/cgroup/memory/memory.stat": f"total_inactive_file {GIB}\n",
        },
    ],
)
def test_the_lowest_limit_of_the_control_groups_counts(tmp_path: Path, files: dict[str, str]) -> None:
    """Both versions; what the kernel drops when it needs room does not count as used."""
    host = read_host(made(tmp_path, files))
    assert (host.limit_bytes, host.used_bytes) == (8 * GIB, 4 * GIB)
    assert available_bytes(tmp_path) == 4 * GIB
    for free, least in ((3 * GIB, 3 * GIB), (5 * GIB, 4 * GIB)):
        made(tmp_path, {"proc/meminfo": f"MemAvailable: {free // 1024} kB\n"})
        assert available_bytes(tmp_path) == least


def test_without_a_limit_there_is_none(tmp_path: Path) -> None:
    """Version 1 writes a very large number; a file that is missing is no limit either."""
    files = {
        "proc/self/cgroup": "4:memory:/\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "proc/meminfo": "MemFree: 5 kB\nMemTotal:       1024 kB\n",
        "proc/sys/kernel/osrelease": "5.15.90.1-microsoft-standard-WSL2\n",
    }
    host = read_host(made(tmp_path, files))
    assert (host.limit_bytes, host.memory_bytes, host.is_wsl, host.shared_total_bytes) == (None, MIB, True, None)
    assert available_bytes(tmp_path) is None


def test_this_machine_can_be_read() -> None:
    host = read_host()
    assert host.memory_bytes is not None
    assert host.memory_bytes > GIB // 4
    assert host.shared_total_bytes is None or host.shared_total_bytes >= (host.shared_free_bytes or 0)
