"""A script finds the surroundings that `python SCRIPT` gives it, and whatever it starts sees the card."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import ullage
from tests.shared.commands import SCRIPTS, Predict, environment_of
from ullage.predicting.prediction.predict import Request
from ullage.predicting.prediction.predict import predict as predict_here

pytestmark = pytest.mark.own_process

TESTS_OWN_SITECUSTOMIZE = "import os\nos.environ['MINE'] = 'loaded'\n"


def test_a_script_finds_what_python_would_give_it(predict: Predict, workplace: Path) -> None:
    """The checks are in the script: its arguments, path, input and folder are its own; torch comes when it asks.

    So the environment that it sets before `import torch` counts: its allocator settings, and its choice of a card.
    """
    (workplace / "data.txt").write_text("relative to where the user is")
    ended = predict("with space ü/surroundings.py", "--json", "--", "--gpu", "mine", "an argument")
    assert ended.code == 0, ended.error
    assert ended.json["ended"] == "steps"
    assert ended.json["arguments"] == ["--gpu", "mine", "an argument"]
    assert len(ended.json["steps"]) == 3


def test_options_win_over_what_the_script_sets(predict: Predict, workplace: Path) -> None:
    """--alloc-conf asks "what if", so it counts, and a note says what it replaced."""
    script = workplace / "sets.py"
    script.write_text(
        "import os\n"
        "os.environ['PYTORCH_CUDA_ALLOC_CONF'] = 'expandable_segments:True'\n"
        "import torch\n"
        "x = torch.zeros(1, device='cuda')\n"
        "assert not torch.cuda.memory_snapshot()[0]['is_expandable']\n"
    )
    ended = predict(script, "--alloc-conf", "expandable_segments:False", "--json")
    assert ended.code == 0, ended.error
    note = "the script sets PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, which --alloc-conf replaced"
    assert note in ended.json["notes"]


def test_a_script_can_hide_the_card(predict: Predict, workplace: Path) -> None:
    """CUDA_VISIBLE_DEVICES="" means no card, here as anywhere."""
    script = workplace / "hides.py"
    script.write_text(
        "import os\nos.environ['CUDA_VISIBLE_DEVICES'] = ''\nimport torch\n"
        "assert not torch.cuda.is_available() and torch.cuda.device_count() == 0\n"
    )
    ended = predict(script)
    assert ended.code == 4, ended.error
    assert "the script hides every GPU from torch with CUDA_VISIBLE_DEVICES=''" in ended.text


def test_children_of_every_kind_see_the_card(predict: Predict, workplace: Path) -> None:
    """DataLoader workers by fork, spawn and forkserver, torch's spawn, and a plain subprocess.

    A sitecustomize of the user's own runs in them as well.
    """
    (workplace / "mine").mkdir()
    (workplace / "mine" / "sitecustomize.py").write_text(TESTS_OWN_SITECUSTOMIZE)
    path = os.pathsep.join(filter(None, [str(workplace / "mine"), os.environ.get("PYTHONPATH", "")]))
    ended = predict("starts_processes.py", "--json", PYTHONPATH=path)
    assert ended.code == 0, ended.error
    assert ended.json["ended"] == "steps"
    assert len(ended.json["steps"]) == 3


def _other_pythons() -> list[str]:
    """Pythons of other versions on this machine, for which ullage is not installed."""
    ours = f"{sys.version_info.major}.{sys.version_info.minor}"
    folders = {Path(sys.base_prefix).parent, Path("/usr")}
    named = {path for folder in folders for path in (*folder.glob("*/bin/python"), *folder.glob("bin/python3.*[0-9]"))}
    found = {}
    for path in sorted(named):
        ended = subprocess.run(
            [path, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], capture_output=True, text=True
        )
        found.setdefault(ended.stdout.strip(), str(path))
    return [path for version, path in found.items() if version and version != ours]


def test_a_tool_with_a_python_of_its_own_is_left_alone(workplace: Path) -> None:
    """It has no torch, so it needs no card; and it could not load our package, which is made for another version."""
    others = _other_pythons()
    if not others:
        pytest.skip("there is no Python of another version on this machine")
    code = "print('tool works')"
    for other in others:
        ended = emulating(workplace, f"sys.exit(subprocess.run([{other!r}, '-c', {code!r}]).returncode)")
        assert (ended.stdout, ended.stderr, ended.returncode) == ("tool works\n", "", 0), other


def test_a_torch_of_another_python_is_not_let_loose_on_a_real_card(workplace: Path) -> None:
    """It would find another card than its parent, or none."""
    others = _other_pythons()
    if not others:
        pytest.skip("there is no Python of another version on this machine")
    (workplace / "theirs").mkdir()
    (workplace / "theirs" / "torch.py").touch()
    for other in others:
        ended = emulating(
            workplace,
            f"sys.exit(subprocess.run([{other!r}, '-c', 'print(1)'], env=os.environ | "
            f"{{'PYTHONPATH': os.environ['PYTHONPATH'] + ':' + {str(workplace / 'theirs')!r}}}).returncode)",
        )
        if ended.returncode == 0:
            assert "2.7" in other, "only a Python that cannot look for torch is let through"
            continue
        assert ended.returncode == 4, other
        assert "ullage is not installed for this Python" in ended.stderr


def test_a_child_does_not_speak_for_its_parent(workplace: Path) -> None:
    """Steps taken in a forked process are not the script's."""
    script = workplace / "forks.py"
    script.write_text(
        "import os, torch\n"
        "if os.fork() == 0:\n"
        "    model = torch.nn.Linear(8, 8).cuda()\n"
        "    optimizer = torch.optim.SGD(model.parameters())\n"
        "    for _ in range(5):\n"
        "        model(torch.zeros(2, 8, device='cuda')).sum().backward()\n"
        "        optimizer.step()\n"
        "    os._exit(0)\n"
        "assert os.wait()[1] == 0\n"
    )
    progress: list[str] = []
    prediction = predict_here(Request.of(script, gpu="T4", steps=3), progress=progress.append)
    assert prediction.reason.startswith("the script's own process allocated nothing on the GPU")
    assert (prediction.ended, prediction.steps) == ("ended", [])
    told = [text for text in progress if not text.startswith("no step yet")]  # which is of a machine that is busy
    assert told == ["starting", "running the script", "importing torch", "running the script"]


def emulating(workplace: Path, code: str, **changes: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process that emulates two cards."""
    return subprocess.run(
        [sys.executable, "-c", f"import os, subprocess, sys, ullage\nullage.emulate('T4', count=2)\n{code}"],
        capture_output=True,
        text=True,
        cwd=workplace,
        env=environment_of(workplace, **changes),
        timeout=900,
    )


def test_torchrun_starts_processes_on_the_card(workplace: Path) -> None:
    """Two ranks of a data-parallel run share a group over the emulated NCCL."""
    script = str(SCRIPTS / "distributed.py")
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", script]
    ended = emulating(workplace, f"sys.exit(subprocess.run({run!r}).returncode)")
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert sorted(ended.stdout.splitlines()) == ["rank 0 Tesla T4 True", "rank 1 Tesla T4 True"]
    for logs in (workplace / "tmp").glob("torchelastic_*"):  # torchrun keeps them
        shutil.rmtree(logs)


def test_a_child_that_cannot_emulate_ends(workplace: Path) -> None:
    """It must not go on with a real card; its order of packages is left alone where it can."""
    broken = "os.environ['ULLAGE_EMULATED_CARD'] = '{}'\n"
    run = "sys.exit(subprocess.run([sys.executable, '-c', 'print(1)']).returncode)"
    ended = emulating(workplace, broken + run)
    assert (ended.returncode, ended.stdout) == (4, "")
    assert "this process cannot emulate the GPU of its parent process (TypeError" in ended.stderr
    assert "Traceback" not in ended.stderr
    show = "print([path for path in sys.path if path and not path.endswith('/hooks')], flush=True)\n"
    run = f"subprocess.run([sys.executable, '-c', {('import sys;' + show)!r}])"
    # First on the path, so that one taken away and put back would show.
    ended = emulating(workplace, show + run, PYTHONPATH=str(Path(ullage.__file__).parents[1]))
    before, after = ended.stdout.splitlines()
    assert before == after


def test_nvidia_smi_tells_of_the_emulated_card_and_of_what_is_used(predict: Predict, workplace: Path) -> None:
    """In the script's process and below it, whatever else is on the path; what a script of one step uses is counted."""
    script = workplace / "asks.py"
    script.write_text(
        "import os, subprocess, sys, torch\n"
        "held = torch.zeros(100 << 20, dtype=torch.uint8, device='cuda')\n"
        "ask = ['nvidia-smi', '--query-gpu=name,memory.total,memory.used', '--format=csv,noheader,nounits']\n"
        "for command in (ask, ['sh', '-c', ' '.join(ask)]):\n"
        "    name, total, used = subprocess.check_output(command, text=True).strip().split(', ')\n"
        "    free, all_of_it = torch.cuda.mem_get_info()\n"
        "    assert (name, int(total)) == (torch.cuda.get_device_name(), all_of_it >> 20), (name, total)\n"
        "    assert int(used) == (all_of_it - free) >> 20, (used, free)\n"
        "del held\n"
        "torch.cuda.empty_cache()\n"
        "assert subprocess.check_output([*ask[:1], '--query-compute-apps=pid', *ask[2:]], text=True).strip() == ''\n"
    )
    ended = predict(script, "--json")
    assert ended.code == 0, ended.error
