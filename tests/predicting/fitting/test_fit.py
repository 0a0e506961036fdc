"""`ullage fit`: the answer fits and the next value does not, each one run."""

import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.forked import client
from tests.shared.commands import SCRIPTS, Ended, command, environment_of, processes_of, slow

CARD = ("--gpu", "T4", "--total-memory", "1GiB", "--context", "100MiB")


def fit_command(*arguments: object) -> list[str]:
    line = command(*arguments)
    return [part if part != "predict" else "fit" for part in line]


def fit(workplace: Path, *arguments: object) -> Ended:
    own = [word for word in arguments if word == "--json"]  # the script has it too
    rest = [word for word in arguments if word != "--json"]
    done = client.run(
        fit_command(*own, SCRIPTS / "train.py", *CARD, *rest),
        cwd=workplace,
        env=environment_of(workplace),
        timeout=900,
    )
    return Ended(code=done.returncode, out=done.stdout, error=done.stderr)


def test_the_largest_fits_the_next_does_not_and_predict_says_the_same(workplace: Path) -> None:
    ended = fit(workplace, "--vary", "--batch-size=30000..390000:30000", "--width", "512", "--json")
    assert ended.code == 0, ended.error
    answer = ended.json
    assert answer["next"] == answer["best"] + 30000
    assert all(probe["value"] % 30000 == 0 for probe in answer["probes"])
    verdicts = {probe["value"]: probe for probe in answer["probes"]}
    for value, code in ((answer["best"], 0), (answer["next"], 1)):
        line = command("--json", SCRIPTS / "train.py", *CARD, "--width", "512", "--batch-size", value)
        done = client.run(line, cwd=workplace, env=environment_of(workplace))
        alone = Ended(code=done.returncode, out=done.stdout, error=done.stderr)
        assert alone.code == code
        assert alone.json["peak_reserved_bytes"] == verdicts[value]["peak_reserved_bytes"]
    assert {change["how"] for change in answer["changes"]} == {
        "expandable_segments:True",
        "max_split_size_mb:128",
        "AdamW(..., fused=True)",
        "AdamW(..., foreach=False)",
    }
    for change in answer["changes"]:
        tried = {probe["value"]: probe["fits"] for probe in change["probes"]}
        # One without a gain was tried with the value that does not fit without it.
        assert (change["best"] >= answer["next"]) == tried[answer["next"]]


def test_a_margin_stays_free_and_a_range_ends(workplace: Path) -> None:
    ended = fit(workplace, "--vary", "--batch-size=64..128:64", "--margin", "30%", "--no-changes")
    assert ended.code == 0, ended.error
    assert "BATCH SIZE 128 FITS" in ended.text
    assert "with a margin of 307.2 MiB" in " ".join(ended.out.split())
    assert "It is the largest value that you allowed." in ended.text


def test_two_options_make_a_frontier(workplace: Path) -> None:
    ended = fit(
        workplace, "--vary", "--batch-size=8192..131072:16384", "--vary", "--width=512..1024", "--json", "--no-changes"
    )
    assert ended.code == 0, ended.error
    rows = ended.json["frontier"]
    assert [row["value"] for row in rows] == [512, 1024]
    assert rows[0]["best"] > rows[1]["best"] > 0


def test_nothing_fits(workplace: Path) -> None:
    ended = fit(workplace, "--vary", "--batch-size=10000000..20000000", "--no-changes")
    assert ended.code == 1, ended.error
    assert "NOTHING FITS" in ended.text
    assert "Even batch size 10000000 does not fit" in ended.text


def test_a_value_with_which_the_script_fails_is_named(workplace: Path) -> None:
    ended = fit(workplace, "--vary", "--batch-size=1..64", "--groups", "4")
    assert ended.code == 3
    assert "with batch size 1: train.py raised AssertionError" in ended.error
    assert "the batch does not divide into groups" in ended.error
    assert 'begin higher: --vary "--batch-size=2.."' in ended.error


@slow
def test_where_the_script_fails_the_range_ends(workplace: Path) -> None:
    """What was proved until then is kept."""
    line = fit_command(SCRIPTS / "refuses.py", *CARD, "--vary", "--batch-size=1..1000", "--no-changes", "--json")
    done = client.run(line, cwd=workplace, env=environment_of(workplace))
    assert done.returncode == 0, done.stderr
    answer = Ended(code=0, out=done.stdout, error=done.stderr).json
    assert (answer["best"], answer["next"]) == (40, None)
    assert answer["failure"][0] == 41
    assert "a batch above 40" in answer["failure"][1]


def test_an_option_that_changes_nothing_is_told(workplace: Path) -> None:
    ended = fit(workplace, "--vary", "--steps=10..")
    assert ended.code == 2
    assert "--steps has no upper end, and larger and larger values all fit in" in ended.error


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("halves", "2500 runs out of memory, which the script handles"),
        pytest.param("skips", "2500 makes no optimizer step", marks=slow),
    ],
)
def test_a_run_that_proves_nothing_is_no_proof(workplace: Path, how: str, said: str) -> None:
    """A script that halves its batch when memory runs out, and one that drops a last batch which is not full."""
    line = fit_command(SCRIPTS / "gives_way.py", *CARD, how, "--vary", "--batch-size=500..2500:500", "--no-changes")
    done = client.run(line, cwd=workplace, env=environment_of(workplace))
    assert done.returncode == 0, done.stderr
    assert "BATCH SIZE 1500 FITS" in done.stdout or "BATCH SIZE 1000 FITS" in done.stdout, done.stdout
    assert said.removeprefix("2500 ") in " ".join(done.stdout.split())


def test_mistakes_are_one_sentence(workplace: Path) -> None:
    for arguments, said in (
        (("--vary", "--a", "--vary", "--b", "--vary", "--c"), "--vary is given 3 times; expected once, or twice"),
        (("--vary", "--a", "--vary", "--a=1..2"), "--vary --a is given twice; expected two different options"),
        (("--vary", "--a", "--margin", "x"), "--margin 'x' is not a part of a GPU's memory; expected a percentage"),
        (("--vary", "--a", "--margin", "nan%"), "--margin 'nan%' is not a part of a GPU's memory"),
        (("--vary", "--a", "--margin", "2GiB"), "--margin 2.00 GiB leaves no memory on a GPU with 1.00 GiB"),
        (("--vary", "--a=3"), "has one value only"),
    ):
        ended = fit(workplace, *arguments)
        assert (ended.code, said in ended.error) == (2, True), ended


def test_ctrl_c_leaves_nothing(workplace: Path) -> None:
    process = subprocess.Popen(
        fit_command(SCRIPTS / "train.py", *CARD, "--vary", "--batch-size=2.."),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=workplace,
        env=environment_of(workplace),
    )
    while len(processes_of(workplace / "tmp")) < 2:  # its first run has begun
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=900)
    assert process.returncode == 130
    assert "interrupted; no processes or temporary files were left" in error
    assert "Traceback" not in error
    assert processes_of(workplace / "tmp") == []
