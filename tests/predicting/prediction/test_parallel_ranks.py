"""Every kind of rank alone in its process needs what it needs among others that torchrun starts, to the byte."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

import ullage.predicting.prediction.several.every_rank as several_ranks
from benchmarks.layouts.ranks import CASES, GPU, SCRIPTS, STEPS, Case, alone, together
from tests.forked import client
from tests.shared.commands import Predict, command, environment_of, slow
from ullage.predicting.prediction.ranks.exchange import NO_ROOM
from ullage.predicting.prediction.ranks.processes import HostRoom
from ullage.predicting.prediction.request import Request
from ullage.predicting.prediction.several.every_rank import predict_all_ranks

EARLY = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
said = [{"width": 777}] if dist.get_rank() == 0 else [None]
dist.broadcast_object_list(said, src=0)
model = torch.nn.Linear(512, said[0]["width"]).cuda()
optimizer = torch.optim.SGD(model.parameters())
for step in range(100):
    model(torch.ones(2, 512, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
EMPTY = """
import torch, torch.distributed as dist
dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
model = torch.nn.Linear(512, 64).cuda()
optimizer = torch.optim.SGD(model.parameters())
for step in range(100):
    none = torch.empty(0, dtype=torch.long, device="cuda")
    dist.broadcast(none, src=0)
    assert none.cpu().tolist() == none.nonzero().tolist() == []
    model(torch.ones(2, 512, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
FLOATS = """
import torch, torch.distributed as dist
dist.init_process_group("nccl")
rank, size = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(rank)
model = torch.nn.Linear(512, 64).cuda()
optimizer = torch.optim.SGD(model.parameters())
for step in range(100):
    scores = [torch.zeros(1000, device="cuda") for _ in range(size)]
    dist.all_gather(scores, torch.rand(1000, device="cuda"))
    chosen = (torch.cat(scores) > 0.25).nonzero()
    count = torch.ones(1, device="cuda")
    dist.all_reduce(count)
    held = torch.empty(1000, int(count.item()), device="cuda")
    model(torch.ones(2, 512, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
ALWAYS = ("pipeline.py 1F1B on 2", "objects.py gloo on 2", "gathered.py gloo on 2")
"""One kind whose shapes another rank decides, one whose objects do, and one whose sizes all ranks make together, by a
real Gloo; `make ranks` runs all."""


@pytest.mark.parametrize(
    "case",
    [pytest.param(each, id=each.name, marks=() if each.name in ALWAYS else slow) for each in CASES if not each.needs],
)
def test_a_rank_alone_needs_what_it_needs_among_others(workplace: Path, case: Case) -> None:
    environment = environment_of(workplace, OMP_NUM_THREADS="1")
    real = together(case, environment, workplace, client.run)
    assert len(real) == case.ranks
    assert alone(case, environment, workplace, client.run) == real


def test_a_rank_has_those_run_that_tell_it_something(predict: Predict) -> None:
    """The last stage needs the one before, which needs the first; nothing of them is left behind (`workplace`)."""
    ended = predict(SCRIPTS / "by_hand.py", "--world-size", "3", "--rank", "2", "--json", "--steps", "3")
    assert ended.code == 0, ended.error
    assert "rank 1 was run too, up to the messages that this rank needs" in ended.json["notes"]
    first = predict(SCRIPTS / "by_hand.py", "--world-size", "3", "--rank", "0", "--json", "--steps", "3")
    assert first.code == 0, first.error
    assert not any("was run too" in note for note in first.json["notes"])


def test_of_a_command_too_a_rank_is_told_what_others_send(workplace: Path) -> None:
    """Alone (`--rank`), each alone (`--rank all`), and all of them together."""
    case = next(each for each in CASES if each.name == "by_hand.py on 2")
    real = together(case, environment_of(workplace), workplace, client.run)
    for how in (("--rank", "1"), ("--rank", "all"), ("--processes", "real")):
        answer = predict_command(workplace, *how, "--nproc-per-node", "2", SCRIPTS / "by_hand.py")
        assert (answer["peak_allocated_bytes"], answer["peak_reserved_bytes"]) == real[1], how
        assert answer["rank"] == 1, how


def predict_command(workplace: Path, option: str, value: str, *words: object) -> dict[str, Any]:
    """What `ullage predict` foretells of torchrun's command."""
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", *words)
    done = client.run(
        command("--gpu", GPU, "--json", "--steps", str(STEPS), option, value, *launcher),
        cwd=workplace,
        env=environment_of(workplace),
        timeout=900,
    )
    for logs in (workplace / "tmp").glob("torchelastic_*"):  # torchrun keeps them
        shutil.rmtree(logs)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_hosts_tell_each_other_before_the_card_is_used(predict: Predict, tmp_path: Path) -> None:
    script = tmp_path / "early.py"
    script.write_text(EARLY)
    ended = predict(script, "--world-size", "2", "--rank", "1", "--json")
    assert ended.code == 0, ended.error
    assert ended.json["role_peaks"]["parameters"] == 4 * (512 * 777 + 777)
    assert ended.json["ended"] == "steps"


def test_what_is_empty_is_known(predict: Predict, tmp_path: Path) -> None:
    """A rank that gets no tokens reads counts of none; that decides nothing."""
    script = tmp_path / "empty.py"
    script.write_text(EMPTY)
    ended = predict(script, "--world-size", "2", "--rank", "1", "--json")
    assert ended.code == 0, ended.error
    assert [read for read in ended.json["reads"] if read["certainty"] == "unknown"] == []


def test_why_a_message_does_not_come_is_told(predict: Predict, tmp_path: Path) -> None:
    """The rank that would send it has failed."""
    text = (SCRIPTS / "by_hand.py").read_text()
    script = tmp_path / "fails.py"
    script.write_text(text.replace("\ndef step", "if is_first:\n    raise ValueError('no data')\n\n\ndef step"))
    shutil.copy(SCRIPTS / "common.py", tmp_path)
    ended = predict(script, "--world-size", "2", "--rank", "1")
    assert ended.code in (3, 4)
    said = " ".join((ended.out + ended.error).split())
    assert "rank 0, from which this rank needs messages, failed: ValueError: no data" in said


def test_what_is_gathered_of_a_lone_rank_is_said_to_be_taken_as_alike(predict: Predict) -> None:
    """One rank of four: sums are of four that have what it has, and nothing that follows is called known."""
    world = ("--world-size", "4", "--rank", "0", "--json", "--steps", "3")
    ended = predict(SCRIPTS / "gathered.py", *world)
    assert ended.code == 0, ended.error
    reads = [read for read in ended.json["reads"] if read["file"].endswith("gathered.py")]
    assert {read["certainty"] for read in reads} == {"alike"}
    assert not any("was run too" in note for note in ended.json["notes"])
    text = (SCRIPTS / "gathered.py").read_text()
    line = 1 + text[: text.index("dist.ReduceOp.SUM), 100")].count("\n")
    (held,) = [use["bytes"] for use in ended.json["lines"] if use["line"] == line]
    assert held - 512 < 4 * 1020 * 100 * 4 <= held, "four ranks with 1020 rows of 100 floats each, in the last step"


def test_gathered_floats_are_not_known_where_the_others_are_asked(predict: Predict, tmp_path: Path) -> None:
    """Floats are not sent: drawn ones stay drawn, and a counted flag is of ranks alike."""
    script = tmp_path / "floats.py"
    script.write_text(FLOATS)
    ended = predict(script, "--world-size", "2", "--rank", "all", "--json", "--draws", "1")
    assert ended.code in (0, 4), ended.error
    reads = {(read["op"], read["certainty"]) for read in ended.json["reads"]}
    assert reads == {("nonzero", "drawn"), ("item", "alike")}
    (held,) = [use["bytes"] for use in ended.json["lines"] if use["line"] == 14]
    assert held == 8192, "1000 rows of as many floats as there are ranks, rounded up"


def test_a_rank_that_fails_for_want_of_the_others_is_run_with_them(predict: Predict) -> None:
    """Of 2 ranks each is asked; of 16 none, and the error says so."""
    ended = predict(SCRIPTS / "fsdp1.py", "--world-size", "2", "--rank", "1", "--json", "--steps", "3")
    assert ended.code == 0, ended.error
    assert "rank 0 was run too, up to the messages that this rank needs" in ended.json["notes"]
    ended = predict(SCRIPTS / "fsdp1.py", "--world-size", "16", "--rank", "1", "--steps", "3")
    assert ended.code == 3
    assert "is not in the optimizer state" in ended.error
    assert "values that 16 ranks gather or reduce: this rank ran alone" in " ".join(ended.error.split())


def test_where_the_host_has_no_memory_for_more_ranks_each_takes_its_own(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them, as what is known of some and not of others does not fit together; and the report says so."""
    monkeypatch.chdir(workplace)
    monkeypatch.setattr(HostRoom, "has_room", lambda self, coming: False)
    monkeypatch.setattr(several_ranks, "AT_ONCE", 1)  # or the two would tell each other
    found = predict_all_ranks(Request.of(SCRIPTS / "gathered.py", gpu=GPU, steps=3, world_size=2))
    low, high = [rank.peak_allocated_bytes for rank in found.ranks or []]
    assert low < high, "each pads to its own length"
    assert "alike" in {read.certainty for read in found.reads}
    assert (
        f"each rank used its own numbers in place of what the other ranks contribute to collectives: {NO_ROOM}"
        in found.notes
    )


def test_experts_are_balanced_unless_told_and_the_interval_holds_the_worst(predict: Predict) -> None:
    """The figures are those of balanced experts, and the interval's end is that of --routing worst."""

    def run(*options: str) -> dict[str, Any]:
        world = ("--world-size", "2", "--rank", "0", "--json", "--steps", "3")
        found: dict[str, Any] = json.loads(predict(SCRIPTS / "expert.py", *world, *options).out)
        return found

    found, worst = run("--draws", "2"), run("--draws", "1", "--routing", "worst")
    assert found["values"]["routing"] == "balanced"
    assert found["peak_reserved_bytes"] < worst["peak_reserved_bytes"]
    assert found["interval_bytes"][0] < worst["interval_bytes"][0]
    assert found["interval_bytes"][1] == worst["interval_bytes"][1]
    assert any("all tokens on the first experts" in note for note in found["notes"])
