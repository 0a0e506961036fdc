"""The emulated nvidia-smi: what programs read of it, and how it refuses."""

import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator

import pytest

from ullage.base.child_process import HOOKS_FOLDER
from ullage.base.units import MIB
from ullage.gpu.emulator.emulate import SMI_FOLDER, emulate_in

USED = (3 * MIB, 0)


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    """Of a process with two emulated cards."""
    made = {"PATH": os.environ["PATH"]}
    emulate_in(made, "T4", count=2)
    return made


@pytest.fixture
def use() -> Iterator[str]:
    """A process (this one) that uses 3 MiB of the first card."""
    descriptor = os.memfd_create("ullage-card")
    os.write(descriptor, struct.pack("=16q", *USED, *[0] * 14))
    yield f"{os.getpid()}:{descriptor}"
    os.close(descriptor)


def smi(environment: dict[str, str], *arguments: str, **more: str) -> tuple[int, str]:
    """What it says, found as programs find it, and its exit code."""
    done = subprocess.run(
        ["nvidia-smi", *arguments], env=environment | more, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.stderr == ""
    return done.returncode, done.stdout


def test_it_is_found_first_and_once(environment: dict[str, str]) -> None:
    before = dict(environment)
    emulate_in(environment, "T4", count=2)
    assert environment == before
    assert environment["PATH"].split(os.pathsep)[0] == SMI_FOLDER
    assert environment["PYTHONPATH"] == HOOKS_FOLDER
    assert environment["ULLAGE_PYTHON"] == sys.executable


def test_a_query_is_csv(environment: dict[str, str], use: str) -> None:
    told = json.loads(environment["ULLAGE_EMULATED_CARD"])
    total, context = told["total_memory_bytes"] // MIB, told["context_bytes"] // MIB
    fields = "index,name,memory.total,memory.used,memory.free,compute_cap,utilization.gpu,power.draw,count"
    code, text = smi(environment, f"--query-gpu={fields}", "--format=csv", ULLAGE_EMULATED_USE=use)
    assert code == 0
    assert text.splitlines() == [
        "index, name, memory.total [MiB], memory.used [MiB], memory.free [MiB], compute_cap, utilization.gpu [%], "
        "power.draw, count",
        f"0, Tesla T4, {total} MiB, {context + 3} MiB, {total - context - 3} MiB, 7.5, 0 %, [N/A], 2",
        f"1, Tesla T4, {total} MiB, 0 MiB, {total} MiB, 7.5, 0 %, [N/A], 2",
    ]
    plain = ("--query-gpu=name,memory.total", "--format=csv,noheader,nounits", "-i", "1")
    assert smi(environment, *plain) == (0, f"Tesla T4, {total}\n")
    apps = ("--query-compute-apps=pid,used_memory,gpu_uuid", "--format=csv,noheader,nounits")
    uuid = "GPU-756c6c61-6765-0000-0000-000000000000"
    assert smi(environment, *apps, ULLAGE_EMULATED_USE=use) == (0, f"{os.getpid()}, {context + 3}, {uuid}\n")


def test_other_forms(environment: dict[str, str], use: str) -> None:
    code, text = smi(environment, ULLAGE_EMULATED_USE=use)
    assert code == 0
    assert {len(line) for line in text.splitlines()[1:] if line} == {91}
    assert "Tesla T4" in text
    assert "CUDA Version: 13.0" in text
    assert f"{os.getpid()}      C" in text
    assert smi(environment, "-L")[1].splitlines() == [
        f"GPU {index}: Tesla T4 (UUID: GPU-756c6c61-6765-0000-0000-{index:012x})" for index in range(2)
    ]
    assert "Product Name                          : Tesla T4" in smi(environment, "-q", "-d", "MEMORY")[1]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--query-gpu=nothing", "--format=csv"), 2, 'Field "nothing" is not a valid field to query.'),
        (("--query-gpu=name",), 1, '"--format=" switch is missing.'),
        (("--query-gpu=name", "--format=json"), 1, '"--format=" switch value "json" is not valid.'),
        (("-i", "7"), 6, "No devices were found"),
        (("--nothing",), 1, "Invalid combination of input arguments."),
        (("topo", "-m"), 1, "Invalid combination of input arguments."),
        (("-i",), 1, "Option -i requires an argument."),
        (("-pl", "250"), 4, "Insufficient Permissions"),
    ],
)
def test_what_it_does_not_know_is_one_line(
    environment: dict[str, str], arguments: tuple[str, ...], code: int, said: str
) -> None:
    ended, text = smi(environment, *arguments)
    assert ended == code
    assert said in text
    assert len(text.strip().splitlines()) == 1


def test_without_an_emulated_card_there_is_none(environment: dict[str, str]) -> None:
    without = {name: value for name, value in environment.items() if name != "ULLAGE_EMULATED_CARD"}
    code, text = smi(without)
    assert code == 9
    assert text.startswith("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver")


def test_a_process_that_has_ended_or_shows_another_file_uses_nothing(environment: dict[str, str]) -> None:
    query = ("--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", "0")
    with open(os.devnull) as other:
        gone = f"{os.getpid()}:{other.fileno()} {os.getpid()}:987 999999999:3"
        assert smi(environment, *query, ULLAGE_EMULATED_USE=gone) == (0, "0\n")
