"""`ullage fit --layout` on a real model: each layout's ranks run alone, and predict says the same of them."""

from pathlib import Path

from tests.forked import client
from tests.shared.commands import Ended, command, environment_of

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "layouts" / "llama.py"
OPTIONS = [word for axis in ("dp", "tp", "pp") for word in ("--layout-option", f"{axis}=--{axis}")]


def test_every_layout_of_four_cards(workplace: Path) -> None:
    line = [word if word != "predict" else "fit" for word in command("--json", "--steps", "2", "--gpu", "H100")]
    line += ["--cards", "4", "--layout", "dp*tp*pp", "--most", "dp=2", "--most", "tp=2", *OPTIONS]
    line += ["--store", "kept.sqlite", str(SCRIPT), "--micro-batches", "4", "--length", "512"]
    done = client.run(line, cwd=workplace, env=environment_of(workplace))
    assert done.returncode == 0, done.stderr
    answer = Ended(code=0, out=done.stdout, error=done.stderr).json
    rows = {tuple(row["layout"].values()): row for row in answer["layouts"]}
    assert set(rows) == {(1, 1, 4), (1, 2, 2), (2, 1, 2), (2, 2, 1)}
    assert all(row["verdict"] == "fits" for row in rows.values()), rows
    assert [run["rank"] for run in rows[1, 1, 4]["ranks"]] == [0, 1, 3]
    assert all(row["sent_bytes_per_step_estimate"] for row in rows.values())
    # The fullest rank, predicted by itself.
    row = rows[2, 1, 2]
    fullest = next(run for run in row["ranks"] if run["rank"] == row["fullest_rank"])
    alone = command("--json", "--steps", "2", "--gpu", "H100", "--world-size", "4", "--rank", row["fullest_rank"])
    alone += [str(SCRIPT), "--micro-batches", "4", "--length", "512", "--dp", "2", "--tp", "1", "--pp", "2"]
    done = client.run(alone, cwd=workplace, env=environment_of(workplace))
    predicted = Ended(code=done.returncode, out=done.stdout, error=done.stderr).json
    assert predicted["peak_allocated_bytes"] == fullest["peak_allocated_bytes"]
    # What was run is known the next time.
    again = client.run(line, cwd=workplace, env=environment_of(workplace))
    known = Ended(code=again.returncode, out=again.stdout, error=again.stderr).json
    assert (known["runs"], known["kept_from_before"]) == (0, answer["runs"])
    assert known["layouts"] == answer["layouts"]


def test_mistakes_are_one_sentence(workplace: Path) -> None:
    for words, said in (
        (["--layout", "dp"], "--layout needs the number of GPUs to lay out; expected --cards 64 next to it"),
        (["--cards", "4"], "--cards has no meaning without --layout"),
        ([], "an option to vary is missing; expected --vary with an option of the script, or --layout"),
        (
            ["--layout", "dp*tp", "--cards", "4"],
            "no option of the script is known that sets tp; give --layout-option 'tp=--OPTION'",
        ),
        (["--layout", "dp", "--cards", "4", "--rank", "1"], "--rank has no meaning together with --layout"),
        (["--layout", "dp", "--cards", "4", "--on", "x"], "--on 'x' is not an engine; expected local, ray"),
    ):
        line = [word if word != "predict" else "fit" for word in command("--gpu", "H100", *words, SCRIPT)]
        done = client.run(line, cwd=workplace, env=environment_of(workplace))
        assert done.returncode == 2, done.stderr
        assert said in done.stderr
