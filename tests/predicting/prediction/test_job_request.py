"""The lines that ask a cluster for what was found can be read by that cluster, and say where each figure comes from."""

import dataclasses
import re

import pytest
import yaml

from ullage.base.units import GIB, MIB
from ullage.predicting.prediction.job_request import NAMES, JobNeeds, job_request_of

ONE = JobNeeds(
    script="train.py",
    gpu="NVIDIA H100 80GB HBM3",
    card_bytes=80 * GIB,
    used_bytes=31 * GIB,
    fits=True,
    nodes=1,
    gpus=1,
    ranks=1,
    workers=0,
    host_bytes=3 * GIB,
    shared_memory_bytes=0,
)
MANY = dataclasses.replace(
    ONE, nodes=2, gpus=8, ranks=8, workers=4, host_bytes=100 * GIB, shared_memory_bytes=700 * MIB, fits=False
)
UNKNOWN = dataclasses.replace(ONE, host_bytes=None)
ALL = pytest.mark.parametrize("needs", [ONE, MANY, UNKNOWN])
# sbatch(1): the options that are written, with the form of their values.
OPTIONS = {
    "nodes": r"[1-9]\d*",
    "ntasks-per-node": r"[1-9]\d*",
    "gpus-per-node": r"([a-z0-9_]+:)?[1-9]\d*",
    "gres": r"gpu:([a-z0-9_]+:)?[1-9]\d*",
    "cpus-per-task": r"[1-9]\d*",
    "mem": r"[1-9]\d*[KMGT]",
}


def directives(text: str) -> dict[str, str]:
    """What sbatch reads of a header: whole lines of `#SBATCH`, up to the first that is no comment."""
    found = {}
    for line in text.splitlines():
        assert line.startswith("#"), "sbatch reads no option after a line that is no comment"
        if line.startswith("#SBATCH"):
            name, value = re.fullmatch(r"#SBATCH --([a-z-]+)=(\S+)", line).groups()
            assert name not in found
            assert re.fullmatch(OPTIONS[name], value)
            found[name] = value
    return found


def test_an_sbatch_header_of_one_card() -> None:
    found = directives(job_request_of("slurm", ONE).text)
    assert found == {
        "nodes": "1",
        "ntasks-per-node": "1",
        "gpus-per-node": "1",
        "cpus-per-task": "1",
        "mem": "5G",
    }


def test_an_sbatch_header_of_two_nodes() -> None:
    request = job_request_of("slurm", MANY)
    found = directives(request.text)
    assert found["nodes"] == "2"
    assert found["ntasks-per-node"] == found["gpus-per-node"] == "8"
    assert found["cpus-per-task"] == "5"
    assert found["mem"] == "125G"
    assert request.memory_bytes == 125 * GIB
    assert request.shared_memory_bytes == 2 * GIB


def test_the_line_with_the_cards_type_is_one_when_a_mark_is_taken_away() -> None:
    line = next(line for line in job_request_of("slurm", MANY).text.splitlines() if "gres" in line)
    assert line == "##SBATCH --gres=gpu:h100:8"
    assert directives(line[1:]) == {"gres": "gpu:h100:8"}


def test_a_pod_is_yaml_that_kubernetes_takes() -> None:
    pod = yaml.safe_load(job_request_of("k8s", MANY).text)
    [container] = pod["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 8, "memory": "125Gi", "cpu": "40"}
    assert container["resources"]["requests"] == {"memory": "125Gi", "cpu": "40"}
    assert container["volumeMounts"] == [{"name": "shm", "mountPath": "/dev/shm"}]
    assert pod["volumes"] == [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "2Gi"}}]


def test_a_pod_without_shared_memory_has_no_volume() -> None:
    pod = yaml.safe_load(job_request_of("k8s", ONE).text)
    assert list(pod) == ["containers"]
    assert list(pod["containers"][0]) == ["name", "resources"]


def test_memory_that_nobody_measured_is_not_asked_for() -> None:
    assert "mem" not in directives(job_request_of("slurm", UNKNOWN).text)
    pod = yaml.safe_load(job_request_of("k8s", UNKNOWN).text)
    assert pod["containers"][0]["resources"]["requests"] == {"cpu": "1"}
    assert job_request_of("k8s", UNKNOWN).memory_bytes is None


@ALL
@pytest.mark.parametrize("kind", NAMES)
def test_every_margin_is_named(kind: str, needs: JobNeeds) -> None:
    text = job_request_of(kind, needs).text
    assert ("margin" in text) or needs.host_bytes is None
    assert ("NOT known to fit" in text) is not needs.fits
    assert all(len(line) <= 78 for line in text.splitlines()), "a terminal of 80 columns would break it"
    if needs.shared_memory_bytes:
        assert "700.0 MiB measured, margin 100%" in text


def test_a_scripts_name_is_never_an_option() -> None:
    named = dataclasses.replace(ONE, script="a.py\n#SBATCH --exclusive\u2028" + "long" * 30)
    for kind in NAMES:
        text = job_request_of(kind, named).text
        assert not any(line.startswith("#SBATCH --ex") for line in text.splitlines())
        assert all(len(line) <= 78 for line in text.splitlines())
