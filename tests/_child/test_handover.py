"""The emulated GPU reaches a Python with any environment and any options. Otherwise, the cause is named."""

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import ullage
from tests.shared.commands import Predict, command, environment_of
from ullage.base.child_process import HANDOVER, HOOKS_FOLDER, hand_over, is_handed_over
from ullage.gpu.emulator.emulate import emulate_in
from ullage.predicting.prediction.process.unreached import ignoring_option

pytestmark = pytest.mark.own_process

SITE = sysconfig.get_path("purelib")
SHOWS = f"""
import sys
sys.path.append({SITE!r})
import importlib.util, os
found = importlib.util.find_spec("torch")  # as an import begins; the import itself takes seconds
emulation = sys.modules.get("ullage.gpu.emulator.emulate")
print(emulation._current.gpu if emulation is not None and emulation._current is not None else "no GPU")
"""
PYTHON = shlex.quote(sys.executable)


@pytest.fixture
def shows(workplace: Path) -> Path:
    script = workplace / "shows.py"
    script.write_text(SHOWS)
    return script


def reached(workplace: Path, words: list[str], **changes: str) -> str:
    """What a command writes in an environment that emulates a T4."""
    environment = environment_of(workplace, **changes)
    emulate_in(environment, "T4")
    ended = subprocess.run(words, cwd=workplace, env=environment, capture_output=True, text=True, timeout=900)
    assert (ended.returncode, ended.stderr) == (0, ""), ended
    return ended.stdout.strip()


@pytest.mark.parametrize(
    "line",
    [
        f"{PYTHON} shows.py",
        f"env PYTHONPATH=. {PYTHON} shows.py",
        f"env -i {PYTHON} shows.py",
        f"env -u PYTHONPATH -u ULLAGE_EMULATED_CARD -u LD_PRELOAD {PYTHON} shows.py",
        f"export PYTHONPATH=$PWD LD_PRELOAD=; {PYTHON} shows.py",
        f"unset LD_PRELOAD; exec env - sh -c 'exec {PYTHON} shows.py'",
        f"nohup setsid -w env -i {PYTHON} shows.py </dev/null",
    ],
)
def test_a_shell_that_changes_the_environment(workplace: Path, shows: Path, line: str) -> None:
    assert reached(workplace, ["bash", "-c", line]) == "Tesla T4"


@pytest.mark.parametrize(
    "options", ["-I", "-E", "-S", "-IS", "-Es", "-W ignore -I", "-Wignore -X utf8 -S", "-BE", "-sS"]
)
def test_a_python_that_ignores_its_environment(workplace: Path, shows: Path, options: str) -> None:
    assert reached(workplace, [sys.executable, *options.split(), "shows.py"]) == "Tesla T4"
    assert ignoring_option([sys.executable, *options.split(), "shows.py"])


@pytest.mark.parametrize("form", ["-c", "-m", "stdin", "folder"])
def test_every_form_of_a_script_of_a_python_that_ignores_its_environment(
    workplace: Path, shows: Path, form: str
) -> None:
    (workplace / "folder").mkdir()
    (workplace / "folder" / "__main__.py").write_text(SHOWS)
    line = {"-c": '-S -c "$(cat shows.py)"', "-m": "-ES -m shows", "stdin": "-I - <shows.py", "folder": "-I folder"}
    assert reached(workplace, ["bash", "-c", f"{PYTHON} {line[form]}"]) == "Tesla T4"


def test_options_of_the_script_are_not_options_of_python() -> None:
    for words in ("python x.py -I", "python -c pass -S", "python -m x -E", "python -X importtime x.py", "python"):
        assert ignoring_option(words.split()) == ""


RUN = "[sys.executable, 'shows.py']"


@pytest.mark.parametrize(
    "code",
    [
        f"subprocess.run({RUN}, env={{}}, check=True)",
        f"subprocess.run({RUN}, env={{'PYTHONPATH': '.'}}, check=True)",
        f"subprocess.run({RUN}, env={{}}, start_new_session=True, close_fds=False, check=True)",
        f"os.waitpid(os.posix_spawn(sys.executable, {RUN}, {{}}), 0)",
        f"os.waitpid(os.posix_spawnp(sys.executable, {RUN}, {{}}), 0)",
        f"os.execve(sys.executable, {RUN}, {{}})",
        f"os.execvpe(sys.executable, {RUN}, {{}})",
        f"os.execle(sys.executable, *{RUN}, {{}})",
        f"os.execve(os.open(sys.executable, os.O_RDONLY), {RUN}, {{}})",
        f"os.environ.clear(); os.execv(sys.executable, {RUN})",
        f"os.environ.clear(); os.execl(sys.executable, *{RUN})",
        f"os.fork() or os.execve(sys.executable, {RUN}, {{}}); os.wait()",
        f"os.environ['PYTHONPATH'] = '.'; os.system(' '.join({RUN}))",
        "os.environ.clear(); ctypes.CDLL(None).execlp(b'env', b'env', sys.executable.encode(), b'shows.py', None)",
    ],
)
def test_a_program_that_gives_its_child_another_environment(workplace: Path, shows: Path, code: str) -> None:
    assert reached(workplace, [sys.executable, "-c", f"import ctypes, os, subprocess, sys; {code}"]) == "Tesla T4"


def test_a_variable_that_is_set_stays_as_it_is(workplace: Path, shows: Path) -> None:
    """An empty value means that the process does not emulate the GPU. Another library to preload is kept."""
    assert reached(workplace, ["env", "ULLAGE_EMULATED_CARD=", sys.executable, "shows.py"]) == "no GPU"
    code = "import os; print(os.environ['LD_PRELOAD'], os.environ['PYTHONPATH'])"
    with_others = ["env", "LD_PRELOAD=libc.so.6", "PYTHONPATH=one:two", sys.executable, "-c", code]
    assert reached(workplace, with_others) == f"{HANDOVER}:libc.so.6 {HOOKS_FOLDER}:one:two"


def test_a_user_module_of_the_name_sitecustomize_runs_once_with_every_option(workplace: Path) -> None:
    (workplace / "sitecustomize.py").write_text("print('mine')\n")
    assert reached(workplace, [sys.executable, "-c", "pass"], PYTHONPATH=str(workplace)) == "mine"
    assert reached(workplace, [sys.executable, "-I", "-c", "pass"], PYTHONPATH=str(workplace)) == ""


@pytest.mark.parametrize("launcher", ["uv run --no-project --offline python", "conda", "poetry"])
def test_a_launcher_of_environments(workplace: Path, shows: Path, launcher: str) -> None:
    """`conda run` writes a shell script that activates an environment. `poetry run` executes with its own variables."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    words = [*launcher.split(), "shows.py"]
    if launcher == "conda":
        activate = f'eval "$({PYTHON} -c \'print("unset PYTHONPATH; export CONDA_PREFIX=/x")\')"'
        (workplace / "run.sh").write_text(f"{activate}\nexec python shows.py\n")
        code = "import os, subprocess; subprocess.run(['bash', 'run.sh'], env={'PATH': os.environ['PATH']}, check=True)"
        words = [sys.executable, "-I", "-c", code]
    elif launcher == "poetry":
        code = (
            "import os; e = {k: v for k, v in os.environ.items() if k not in ('PYTHONHOME', 'PYTHONPATH')}; "
            "os.execvpe('python', ['python', 'shows.py'], e)"
        )
        words = [sys.executable, "-E", "-c", code]
    elif shutil.which("uv", path=path) is None:
        pytest.skip("uv is not installed")
    assert (
        reached(workplace, words, PATH=path, VIRTUAL_ENV=sys.prefix, UV_CACHE_DIR=str(workplace / "cache"))
        == "Tesla T4"
    )


def test_a_folder_whose_name_has_a_separator_is_not_preloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ullage.base.child_process.HANDOVER", "/a folder/libullage_child.so")
    environment: dict[str, str] = {}
    hand_over(environment)
    assert environment == {}
    monkeypatch.undo()
    hand_over(environment)
    assert is_handed_over(environment)
    before = dict(environment)
    hand_over(environment)
    assert environment == before


# ---- with `ullage predict`

TRAINING = """
import torch
model = torch.nn.Linear(64, 64, device="cuda")
optimizer = torch.optim.SGD(model.parameters())
for _ in range(4):
    model(torch.ones(4, 64, device="cuda")).sum().backward()
    optimizer.step()
"""
# What a static program does: the C library's functions do not run.
DIRECT = """
import ctypes, os, sys
words = [word.encode() for word in sys.argv[1:]] + [None]
ours = ("ULLAGE", "LD_", "PYTHON")
entries = [f"{name}={text}".encode() for name, text in os.environ.items() if not name.startswith(ours)]
array = ctypes.c_char_p * 99
ctypes.CDLL(None).syscall(59, words[0], array(*words), array(*entries, None))
"""


def test_a_job_script_that_clears_everything_is_measured_like_the_script(predict: Predict, workplace: Path) -> None:
    (workplace / "train.py").write_text(TRAINING)
    (workplace / "job.sh").write_text(f"export PYTHONPATH=$PWD\nexec env -i {PYTHON} -I train.py\n")
    plain = predict(workplace / "train.py", "--json")
    ended = predict(Path("/bin/bash"), "job.sh", "--json")
    assert plain.code == ended.code == 0, ended.error
    assert ended.json["peak_allocated_bytes"] == plain.json["peak_allocated_bytes"]
    assert ended.json["steps"] == plain.json["steps"]


def test_a_process_that_is_not_reached_is_named_with_the_cause(predict: Predict, workplace: Path) -> None:
    (workplace / "train.py").write_text(TRAINING)
    (workplace / "direct.py").write_text(DIRECT)
    ended = predict(Path(sys.executable), "direct.py", sys.executable, "train.py")
    assert ended.code == 3
    text = " ".join(ended.error.split())
    assert "none of its processes was measured: the process " in text
    assert "train.py) did not see the GPU: the program that started it removed ullage's environment variables" in text


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        ([sys.executable, "-I", "train.py"], "Python ignores PYTHONPATH or sitecustomize with -I"),
        (["env", "PYTHONPATH=.", sys.executable, "train.py"], "PYTHONPATH was replaced"),
        (["env", "-i", sys.executable, "train.py"], "the program that started it removed ullage's environment"),
    ],
)
def test_without_the_library_the_cause_is_named(workplace: Path, words: list[str], cause: str) -> None:
    """As where the path of the environment has a space, which LD_PRELOAD cannot contain."""
    (workplace / "train.py").write_text(TRAINING)
    (workplace / "a folder").mkdir()
    (workplace / "a folder" / "ullage").symlink_to(Path(ullage.__file__).parent)
    ended = subprocess.run(
        command("--gpu", "T4", *words),
        cwd=workplace,
        env=environment_of(workplace, PYTHONPATH=str(workplace / "a folder")),
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert ended.returncode == 3, ended.stderr
    assert cause in " ".join(ended.stderr.split())


def test_two_installations_of_ullage_measure_a_process_once(predict: Predict, workplace: Path) -> None:
    """As where a launcher of another environment, which has ullage too, starts the training."""
    (workplace / "train.py").write_text(TRAINING)
    (workplace / "other").mkdir()
    (workplace / "other" / "sitecustomize.py").symlink_to(Path(HOOKS_FOLDER) / "sitecustomize.py")
    ended = predict(Path("/usr/bin/env"), f"PYTHONPATH={workplace / 'other'}", sys.executable, "train.py", "--json")
    assert ended.code == 0, ended.error
    assert ended.json["processes"] == []
