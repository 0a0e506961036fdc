"""One rank of many in one process: as torchrun's own ranks, byte for byte."""

import shutil
import sys
from pathlib import Path

import pytest

from tests.forked import client
from tests.shared.commands import SCRIPTS, Predict, environment_of, slow

EXAMPLE = Path(__file__).parents[3] / "examples" / "train_fsdp2.py"


@pytest.mark.parametrize("how", [pytest.param("ddp", marks=slow), "fsdp2", pytest.param("tensor", marks=slow)])
def test_a_lone_rank_needs_what_it_needs_among_others(predict: Predict, workplace: Path, how: str) -> None:
    """Two ranks that torchrun starts on the emulated card are the truth."""
    script = str(SCRIPTS / "ranks.py")
    words = ["torchrun", "--standalone", "--nproc-per-node", "2", script, how]
    card = "ullage.emulate('T4', count=2)"
    code = f"import ullage; {card}; import sys; sys.argv = {words!r}; from torch.distributed.run import main; main()"
    done = client.run(
        [sys.executable, "-c", code],
        cwd=workplace,
        env=environment_of(workplace),
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for logs in (workplace / "tmp").glob("torchelastic_*"):  # torchrun keeps them
        shutil.rmtree(logs)
    together = {
        int(rank): (int(peak), int(reserved)) for rank, peak, reserved in map(str.split, done.stdout.splitlines())
    }
    for rank in (0, 1):
        ended = predict(script, how, "--world-size", "2", "--rank", rank, "--json", "--steps", "3")
        assert ended.code == 0, ended.error
        answer = ended.json
        assert (answer["world_size"], answer["rank"]) == (2, rank)
        assert (answer["peak_allocated_bytes"], answer["peak_reserved_bytes"]) == together[rank]


def test_gloo_beside_nccl_and_a_rank_of_another_node(predict: Predict) -> None:
    ended = predict("ranks.py", "fsdp2", "gloo", "--world-size", "32", "--rank", "13", "--json")
    assert ended.code == 0, ended.error
    shard = sum((512 * 2048 * 2 + 2048 + 512) * 4 for _ in range(4)) // 32
    peaks = ended.json["role_peaks"]
    assert shard <= peaks["parameters"] <= shard * 1.01
    assert peaks["gradients"] == peaks["parameters"]
    assert 2 * shard <= peaks["optimizer_state"] <= 2 * shard * 1.01


def test_seven_billion_parameters_on_64_ranks(predict: Predict) -> None:
    """Each rank holds a 64th: meta tensors until then, so neither the host nor the card holds the whole."""
    ended = predict(EXAMPLE, "--size", "7b", "--world-size", "64", "--json", gpu="H100")
    assert ended.code == 0, ended.error
    parameters = 2 * 32000 * 4096 + 32 * (4 * 4096 * 4096 + 3 * 4096 * 11008 + 2 * 4096) + 4096
    peaks = ended.json["role_peaks"]
    assert abs(peaks["parameters"] / (parameters * 4 / 64) - 1) < 0.01
    assert abs(peaks["gradients"] / (parameters * 4 / 64) - 1) < 0.01
    assert abs(peaks["optimizer_state"] / (parameters * 8 / 64) - 1) < 0.01
    assert peaks["activations"] + peaks["temporaries"] < 5 << 30


def test_every_rank_in_turn_names_the_fullest(predict: Predict) -> None:
    ended = predict("ranks.py", "fsdp2", "--world-size", "3", "--rank", "all", "--json")
    assert ended.code == 0, ended.error
    answer = ended.json
    assert [row["rank"] for row in answer["ranks"]] == [0, 1, 2]
    assert answer["peak_reserved_bytes"] == max(row["peak_reserved_bytes"] for row in answer["ranks"])
    assert answer["ranks"][answer["rank"]]["peak_reserved_bytes"] == answer["peak_reserved_bytes"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--rank", "1"), "--rank 1 is not a rank of the run; expected no --rank without --world-size"),
        (("--world-size", "4", "--rank", "4"), "--rank 4 is not a rank of the run; expected 0 to 3"),
        (("--world-size", "0"), "--world-size 0 is out of range; expected 1 to 1,048,576"),
        (("--rank", "all"), '--rank "all" runs every rank; give --world-size too, from 1 to 64'),
        (("--world-size", "4", "--rank", "x"), "--rank 'x' is not a rank; expected a number from 0 on, or all"),
    ],
)
def test_a_rank_that_cannot_be_is_told(predict: Predict, arguments: tuple[str, ...], said: str) -> None:
    ended = predict("ranks.py", "ddp", *arguments)
    assert (ended.code, said in ended.error) == (2, True), ended


def test_buffers_that_ranks_share(predict: Predict) -> None:
    """The driver makes them, outside the caching allocator; a rank alone has its own in the place of everybody's."""
    peaks = []
    for rank in (0, 3):
        ended = predict("symmetric.py", "--world-size", "4", "--rank", rank, "--json", "--output")
        assert ended.code == 0, ended.error
        assert "(8192, 1024) (2048, 512)" in ended.error
        peaks.append(ended.json["peak_allocated_bytes"])
    parameters, gathered, wide = 4 * 3 * 512 * 1024, 4 * 8192 * 512, 4 * 8192 * 1024
    assert peaks[0] == peaks[1] >= parameters + gathered + wide


def test_ranks_that_a_script_starts_itself(predict: Predict) -> None:
    """Of the processes of torch.multiprocessing.spawn one runs in the script's own, where it is measured."""
    ended = predict("spawns_ranks.py", "--json")
    assert ended.code == 0, ended.error
    assert ended.json["roles"]["parameters"] == 4 * (512 * 512 + 512)
    assert ended.json["notes"] == ["torch.multiprocessing.spawn: only process 0 of 1 ran, in the script's own process"]
    of_four = predict("spawns_ranks.py", "--world-size", "4", "--rank", "3", "--json")
    assert of_four.code == 0, of_four.error
    assert (
        of_four.json["notes"][0] == "torch.multiprocessing.spawn: only process 3 of 4 ran, in the script's own process"
    )
    assert of_four.json["rank"] == 3
    assert of_four.json["settled"]


def test_the_start_of_a_run_of_many_ranks(predict: Predict) -> None:
    """Values that the host sent come back from every rank, in a subgroup's order, and nowhere else."""
    ended = predict("many_ranks.py", "--world-size", "128", "--rank", "77", "--json", gpu="H100")
    assert ended.code == 0, ended.error


def test_a_rank_that_helped_leaves_no_folder(predict: Predict) -> None:
    """It is ended in the middle, and the fixture looks whether the folder for temporary files is empty."""
    ended = predict("leaves_a_folder.py", "--world-size", "2", "--rank", "1", "--json")
    assert ended.code == 0, ended.error
    assert ended.json["notes"][0] == "rank 0 was run too, up to the messages that this rank needs"
