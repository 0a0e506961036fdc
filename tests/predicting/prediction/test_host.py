"""The host's memory of a run, beside what PyTorch and the kernel say of it."""

import os
import subprocess
import sys

import pytest
import yaml

from tests.shared.commands import SCRIPTS, Predict
from tests.shared.fresh import USUAL, answer
from ullage.base.units import KIB, MIB
from ullage.gpu.emulator.torch_build import find_torch, release_of
from ullage.predicting.prediction.host.meter import MODULES_BYTES

pytestmark = pytest.mark.own_process

has_statistics = pytest.mark.skipif(
    release_of(find_torch().version) < (2, 10), reason="this torch does not count pinned memory"
)


@has_statistics
def test_pinned_memory_is_what_pytorch_counts_to_the_byte(predict: Predict) -> None:
    ended = predict("host_pinned.py", "--json", "--output", "--steps", 9, "--draws", 1)
    [told] = [line.split() for line in ended.error.splitlines() if line.startswith("pinned ")]
    host = ended.json["host"]
    assert int(told[2]) >= 10
    assert host["pinned_peak_bytes"] == int(told[1])
    assert sum(line["bytes"] for line in host["pinned_lines"]) == host["pinned_peak_bytes"]
    users = [line for line in host["pinned_lines"] if line["is_users"]]
    assert {os.path.basename(line["file"]) for line in users} == {"host_pinned.py"}
    assert any("pin_memory" in line["file"] for line in host["pinned_lines"] if not line["is_users"])
    assert 0 < host["pinned_untouched_bytes"] < host["pinned_peak_bytes"]
    assert host["workers"] >= 1  # torch itself starts a short process or two
    assert host["workers_bytes"] > 0


@has_statistics
def test_pinned_memory_that_is_registered_counts_as_well(predict: Predict) -> None:
    setting = "pinned_use_cuda_host_register:True"
    ended = predict("host_pinned.py", "--json", "--output", "--steps", 9, "--draws", 1, "--alloc-conf", setting)
    [told] = [line.split() for line in ended.error.splitlines() if line.startswith("pinned ")]
    assert ended.json["host"]["pinned_peak_bytes"] == int(told[1])


def unobserved_peak(script: str) -> int:
    """What the kernel says that a script had at most, on an emulated card, with nobody to watch it."""
    code = f"""
import runpy, ullage
ullage.emulate("T4", values="off")
runpy.run_path({str(SCRIPTS / script)!r}, run_name="__main__")
"""
    environment = os.environ | USUAL  # as the observed run has
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    [line] = [line for line in done.stderr.splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * KIB


def test_what_is_resident_is_what_an_unobserved_run_has(predict: Predict) -> None:
    host = predict("host_data.py", "--json", "--draws", 1).json["host"]
    truth = unobserved_peak("host_data.py")
    assert host["resident_peak_bytes"] == pytest.approx(truth, rel=0.05)
    assert host["own_bytes"] > 0
    [line] = [line for line in host["tensor_lines"] if line["bytes"] == 512 * MIB]
    assert os.path.basename(line["file"]) == "host_data.py"
    assert line["line"] == 7


def test_each_line_has_what_it_asked_for(predict: Predict) -> None:
    """A checkpoint loaded twice, an array of NumPy's, and an optimizer's state on the host."""
    host = predict("host_lines.py", "--json", "--draws", 1).json["host"]
    source = (SCRIPTS / "host_lines.py").read_text().splitlines()
    by_text = {source[line["line"] - 1].strip(): line["bytes"] for line in host["tensor_lines"] if line["is_users"]}
    assert by_text["weights = torch.ones(2 << 20, requires_grad=True)"] == 8 * MIB
    for name in ("first", "second"):
        assert by_text[f"{name} = torch.load(io.BytesIO(file.getvalue()))"] == 8 * MIB
    assert by_text["optimizer.step()"] >= 16 * MIB
    assert host["tensors_peak_bytes"] == sum(line["bytes"] for line in host["tensor_lines"])
    [array] = [line for line in host["array_lines"] if line["bytes"] == 12 * MIB]
    assert source[array["line"] - 1].startswith("array = ")


def test_our_modules_take_what_is_taken_off_for_them() -> None:
    code = """
import json, numpy
def high():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]) * 1024
before = high()
import ullage.predicting.prediction.child.run
from ullage.gpu.emulator.emulate import emulate
from ullage.gpu.tracing.journal import Journal
emulate("T4")
Journal().open()
tell(high() - before)
"""
    assert answer(code, is_forked=False) == pytest.approx(MODULES_BYTES, abs=6 * MIB)


def test_a_given_limit_decides_and_the_reason_is_said(predict: Predict) -> None:
    too_small = predict("host_data.py", "--host-memory", "256MiB", "--request", "k8s")
    assert too_small.code == 1
    assert "DOES NOT FIT: host memory" in too_small.text
    assert "Host memory is too small: at least" in too_small.text
    text = too_small.out[too_small.out.index("\ncontainers:") :]  # at the beginning of a line, as it can be pasted
    assert "volumes" not in yaml.safe_load(text)
    enough = predict("host_data.py", "--host-memory", "64GiB", "--json", "--request", "slurm")
    assert enough.code == 0
    assert enough.json["host"]["fits"] is True
    assert enough.json["host"]["limit_source"] == "given"
    assert "#SBATCH --mem=" in enough.json["job_request"]["text"]


def test_where_the_card_decides_the_reason_is_the_cards(predict: Predict) -> None:
    ended = predict("host_data.py", "--host-memory", "64GiB", "--total-memory", "120MiB", "--context", "110MiB")
    assert ended.code == 1
    assert "ost memory is too small" not in ended.text


def test_a_launchers_request_of_another_cluster_is_refused(predict: Predict) -> None:
    ended = predict("host_data.py", "--request", "pbs")
    assert ended.code == 2
    assert "slurm, k8s" in ended.error
