"""The documents: what stands below a command was printed by it, and every page is in the site."""

import importlib.util
import itertools
import re
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.rotation import SLOW
from ullage.cli.app import app

WIDTH_OF_FILES = 150
ROOT = Path(__file__).resolve().parents[2]
SUBCOMMANDS = {command.name or command.callback.__name__ for command in app.registered_commands if command.callback}


def module_of(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


docs = module_of(ROOT / "tools" / "docs.py")


def blocks() -> list:
    found = [
        block
        for document in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
        for block in docs.blocks_of(document, document.read_text())
    ]
    assert len(found) > 10, "the search finds nothing"
    return found


def test_every_marked_command_is_there() -> None:
    """Each command of a block, and each of a pipe, is a subcommand of ullage or a program."""
    for block in blocks():
        for command in block.commands:
            for part in re.sub(r'"[^"]*"', "QUOTED", command).split("|"):
                program, *rest = part.split()
                known = rest[0] in SUBCOMMANDS if program == "ullage" else program == "python" or shutil.which(program)
                assert known, f"{block.place}: {part}"


slow = pytest.mark.skipif(not SLOW, reason="needs torch, and takes up to a minute: ULLAGE_SLOW=1")


@pytest.mark.parametrize(
    "block", [pytest.param(one, marks=slow if one.is_slow else (), id=one.place) for one in blocks()]
)
def test_what_the_documents_show_is_what_commands_print(block: Any) -> None:
    """Every block that needs no torch is run: nothing but a time may differ. `make docs` writes it anew, with SLOW=1
    the others too."""
    shown = docs.steady(block.document.read_text().split("\n")[block.first : block.last])
    printed = docs.lines_of(block)
    assert docs.steady(printed) == shown


def test_a_wrong_figure_is_found() -> None:
    """The comparison fails for each figure of a block that is changed, but for times."""
    block = next(one for one in blocks() if one.commands[0].startswith("grep"))
    printed = docs.lines_of(block)
    figures = [(n, found) for n, line in enumerate(printed[1:], 1) for found in re.finditer(r"\d+", line)]
    assert len(figures) > 10
    for number, found in figures:
        wrong = list(printed)
        wrong[number] = f"{wrong[number][: found.start()]}{int(found[0]) + 1}{wrong[number][found.end() :]}"
        assert docs.steady(wrong) != docs.steady(printed), wrong[number]


def typed_by_hand(page: str) -> list[str]:
    """Lines of fenced blocks that no program writes, and that are neither a command nor code in a language."""
    blocks = re.findall(r"^(<!-- .* -->\n)?```(\w*)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    plain = [block for marker, language, block in blocks if not marker and language in ("", "console", "text")]
    lines = [line for block in plain for line in block.splitlines()]
    return [line for line in lines if not re.match(r"(\$ )?(ullage|python|pip|make|%\w+)\b", line)]


def test_no_output_is_typed_by_hand() -> None:
    """A fenced block without a marker has commands or code, and nothing that a command would print."""
    assert typed_by_hand("```console\n$ ullage run a.py\n3 steps\n```\n") == ["3 steps"], "the check can fail"
    for document in (ROOT / "docs").glob("*.md"):
        if document.name != "design.md":  # the layers, drawn
            assert typed_by_hand(document.read_text()) == [], document


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("<!-- run quickly -->\n```console\n$ true\n```\n", "is no marker"),
        ("<!-- run exit -->\n```console\n$ true\n```\n", "is no marker"),
        ("<!-- run -->\n\n```console\n$ true\n```\n", "a fenced block with a language must follow"),
        ("<!-- run -->\n```\n$ true\n```\n", "a fenced block with a language must follow"),
        ("<!-- run -->", "a fenced block with a language must follow"),
        ("<!-- run -->\n```console\n$ true\n", "not closed"),
        ("<!-- run -->\n```console\ntrue\n```\n", "the first line of the block must be a command"),
    ],
)
def test_a_marker_that_breaks_the_grammar_is_refused(text: str, complaint: str) -> None:
    """A block that would never be run is no silent one: its line and what was expected are told."""
    with pytest.raises(docs.DocumentError, match=complaint) as caught:
        list(docs.blocks_of(Path("page.md"), text))
    assert str(caught.value).startswith("page.md:1")


def test_a_block_is_written_anew_once(tmp_path: Path) -> None:
    """Old output goes, that of each command stands below it, and a second time nothing is out of date."""
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- run exit 3 -->\n```console\n$ echo 1; echo 2\nold\n$ echo 7; exit 3\n```\nb\n")
    text, stale = docs.renewed(page, slow=False)
    assert text == "a\n<!-- run exit 3 -->\n```console\n$ echo 1; echo 2\n1\n2\n$ echo 7; exit 3\n7\n```\nb\n"
    assert [block.place for block in stale] == [f"{page}:2"]
    page.write_text(text)
    assert docs.renewed(page, slow=False) == (text, [])


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("2 failed in 3.2s", "2 failed in 14.25s", True),
        ("runs/a-20260101-101500-3fa90c/oom-18-1/report.txt", "runs/a-20260203-091501-4/oom-5-1/report.txt", True),
        ("runs/process-17.live", "runs/process-5.live", True),
        ("steps take about 1.05 times as long", "steps take about 1.7 times as long", True),
        ("runs/oom-17-1", "runs/oom-17-2", False),
        ("2 failed in 3.2s", "3 failed in 3.2s", False),
        ("17.0 MiB", "18.0 MiB", False),
        (
            r"-e Host memory at the peak\\n400 MiB\\n\\nB",
            "Host memory at the peak\n9 MiB\n\nB",
            True,
        ),
        (
            r"-e Host memory at the peak\\n400 MiB\\n\\nB",
            "Host memory at the peak\n9 MiB\n\nC",
            False,
        ),
    ],
)
def test_what_is_another_each_time_counts_as_equal(tmp_path: Path, one: str, other: str, is_same: bool) -> None:
    """A block is not written anew for a time, a date or a process, and is for any other figure."""
    page = tmp_path / "page.md"
    page.write_text(f"<!-- run -->\n```console\n$ echo {one}\n{other}\n```\n")
    assert (docs.renewed(page, slow=False)[1] == []) == is_same


def test_the_memory_of_the_machine_counts_as_equal() -> None:
    """Figures of the host in a report are those of who made the page; that it has the section is not."""
    page = ["a", docs.HOST, "resident 400 MiB", "", "b"]
    assert docs.steady(page) == docs.steady(["a", docs.HOST, "resident 9 MiB", "pinned 1 MiB", "", "b"])
    for other in (["a", "b"], ["a", docs.HOST, "resident 400 MiB", "", "c"], ["c", *page[1:]]):
        assert docs.steady(page) != docs.steady(other)


def test_what_takes_long_is_run_on_request_only(tmp_path: Path) -> None:
    """A slow block stays as it is without --slow."""
    page = tmp_path / "page.md"
    page.write_text("<!-- run slow -->\n```console\n$ echo 1\n```\n")
    assert docs.renewed(page, slow=False) == (page.read_text(), [])
    assert docs.renewed(page, slow=True)[0] == "<!-- run slow -->\n```console\n$ echo 1\n1\n```\n"


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        ("exit 4", "ended with exit code 4; expected 0"),
        ("echo $HOME/file", "a place of this machine"),
        ("echo '```'", "would close the block"),
    ],
)
def test_output_that_must_not_be_written_is_refused(tmp_path: Path, command: str, complaint: str) -> None:
    """A command that fails, a path of this machine and a fence do not come into a document."""
    page = tmp_path / "page.md"
    page.write_text(f"<!-- run -->\n```console\n$ {command}\n```\n")
    with pytest.raises(docs.DocumentError, match=complaint):
        docs.renewed(page, slow=False)


def test_what_a_command_writes_does_not_land_in_the_tree(tmp_path: Path) -> None:
    """Commands see the tree's files from a folder of their own."""
    page = tmp_path / "page.md"
    page.write_text("<!-- run -->\n```console\n$ touch left_behind && ls README.md left_behind\n```\n")
    assert "README.md\nleft_behind\n" in docs.renewed(page, slow=False)[0]
    assert not (ROOT / "left_behind").exists()


def test_every_page_is_in_the_menu_or_on_the_reference_page() -> None:
    """The menu has what people ask; what is not there is on docs/reference.md, and nothing is on both."""
    settings = (ROOT / "mkdocs.yml").read_text()
    menu = re.findall(r": (\w+\.md)$", settings, re.MULTILINE)
    reference = re.findall(r"\]\((\w+\.md)\)", (ROOT / "docs/reference.md").read_text())
    assert sorted(menu + reference) == sorted(path.name for path in (ROOT / "docs").glob("*.md"))
    assert len(re.findall(r"^  - ", settings.partition("\nnav:\n")[2], re.MULTILINE)) <= 20


def test_the_settings_table_is_what_replays_give() -> None:
    """docs/settings.md has the figures of today's allocator core, and a picture of each that it shows."""
    settings = module_of(ROOT / "tools" / "settings_pictures.py")
    text = settings.DOCUMENT.read_text()
    for moment in settings.moments():
        assert settings.row_of(moment) in text
        assert (settings.PICTURES / moment.name).read_text() == settings.draw(moment)
    for name in re.findall(r"pictures/(setting-[\w-]+\.svg)", text):
        assert (settings.PICTURES / name).exists()


def test_advice_is_documented_as_it_is_measured() -> None:
    """Every advice, setting and habit stands in docs/common_advice.md with what the benchmark says of it, and nothing
    else does."""
    from benchmarks.common_advice import run

    page = (ROOT / "docs" / "common_advice.md").read_text().partition("## Advice that is not measured here")[0]
    rows = {line for line in page.splitlines() if re.match(r"\| (?!(advice|setting|action|habit) \|)", line)}
    said = [*((each.name, f" {each.verdict} |") for each in run.ADVICES)]
    said += [(f"`{conf.text}`" if conf.text else conf.name, f" {conf.verdict} |") for conf in run.CONFS]
    said += [(habit.name, f" {habit.reading} | {habit.instead} |") for _, habit in run.habits.HABITS]
    for name, end in said:
        own = {row for row in rows if row.startswith(f"| {name} |") and row.endswith(end)}
        assert own, name
        rows -= own
    assert rows == set()


def test_every_net_is_compared_with_cudnn_on_every_card() -> None:
    """docs/cudnn_plans.md has a row for each net of `make cudnn`, card and form, and in none a workspace differs."""
    compare = module_of(ROOT / "benchmarks" / "cudnn" / "compare.py")
    page = compare.PAGE.read_text()
    table = page.split(compare.BEGIN)[1].split(compare.END)[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")][1:]
    found = [(net, card, form) for net, card, form, *_ in rows]
    forms = [compare.text_of(form) for form in compare.FORMS[: compare.USUAL]]
    assert sorted(found) == sorted(itertools.product(compare.NAMES, compare.CARDS, forms))
    for row in rows:
        equal, total = map(int, row[3].split(" of "))
        assert equal == total > 0


wrap = module_of(ROOT / "tools" / "wrap.py")
stale_pages = module_of(ROOT / "tools" / "stale_pages.py")
MAKEFILE = (ROOT / "Makefile").read_text()


def test_a_paragraph_is_wrapped_once_and_nothing_else_is() -> None:
    """Words stay, an item's later lines are indented, code is not broken; tables and fenced blocks stay as they are."""
    wide = " ".join("ab" * 40)
    text = f"* {wide}`c d`\n\n{wide}\nx\n\n```\n{wide}\n```\n| {wide} |\n* short\n  too short\n"
    done = wrap.wrapped(text)
    assert done.split() == text.split()
    assert [len(line) for line in done.split("\n")] == [119, 48, 0, 119, 41, 0, 3, 159, 3, 163, 7, 11, 0]
    assert wrap.wrapped(done) == done


@pytest.mark.parametrize("document", wrap.documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_line_of_a_document_is_wider_than_the_code(document: Path) -> None:
    """`python tools/wrap.py` mends paragraphs. A row of a table says less, or is an item of a list; one with names of
    files is as wide as these are."""
    text = document.read_text()
    assert wrap.wrapped(text) == text
    if f"--write docs/{document.name}" not in MAKEFILE:  # a part of it is a command's
        width = WIDTH_OF_FILES if document.name == "where.md" else wrap.WIDTH
        assert [line for line in text.splitlines() if line.startswith("|") and len(line) > width] == []


def test_every_page_that_a_command_writes_is_known() -> None:
    """A target whose line in `make help` says that it writes a page, or a table of one, is in `PAGES`, and no other."""
    written = re.findall(r"^([a-z-]+):.*?##.* write (?:the table of )?docs/(\w+\.md)", MAKEFILE, re.MULTILINE)
    assert {name: page.target for name, page in stale_pages.PAGES.items()} == {name: target for target, name in written}
    for target, name in re.findall(r"^([a-z-]+):.*\n(?:\t.*\n)*?\t.*--write docs/(\w+\.md)", MAKEFILE, re.MULTILINE):
        assert stale_pages.PAGES[name].target == target


@pytest.mark.parametrize("name", stale_pages.PAGES)
def test_a_page_that_a_command_writes_says_when(name: str) -> None:
    """Its one stamp names the make target, the folders that it describes, and a commit of this history, with its date.
    Whether the page is older than the code is not asked here: `make stale-pages` lists it."""
    page, text = stale_pages.PAGES[name], (ROOT / "docs" / name).read_text()
    stamps = list(stale_pages.STAMP.finditer(text))
    assert len(stamps) == text.count("Written by `make ") == 1, "not one stamp: tools/stale_pages.py writes it"
    stamp = stamps[0]
    assert stamp["target"] == page.target
    assert stamp[0].endswith(f"\n{stale_pages.description_of(page)}"), "PAGES of tools/stale_pages.py has other folders"
    assert all((ROOT / path).exists() for path in page.paths)
    if stale_pages.has_history():
        known = stale_pages.git("show", "-s", "--format=%cs", stamp["commit"])
        assert known == stamp["date"], f"commit {stamp['commit']} of docs/{name}; was a branch rebased?"


def test_stale_pages_are_listed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each page has a line with the commits since it was written; where the history is not whole, that is said."""
    monkeypatch.setattr(sys, "argv", ["stale_pages.py"])
    monkeypatch.setattr(stale_pages, "has_history", lambda: False)
    assert stale_pages.main() == 0
    assert "has not the whole history" in capsys.readouterr().out
    monkeypatch.undo()
    if stale_pages.has_history():
        listed = list(stale_pages.lines())
        assert sorted(line.split()[0] for line in listed) == sorted(stale_pages.PAGES)
        assert all(re.search(r" commits since | up to date ", line) for line in listed)


def test_commits_since_a_page_are_counted_through_renames(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of four commits two changed the folder since: one of them under the name that a file had before."""
    history = [
        ("d", [("README.md", "README.md")]),
        ("c", [("src/old/a.py", "src/new/a.py")]),
        ("b", [("src/old/a.py", "src/old/a.py"), ("src/old/b.py", "src/old/b.py")]),
        ("a", [("src/old/a.py", "src/old/a.py")]),
    ]
    monkeypatch.setattr(stale_pages, "history", lambda: history)
    monkeypatch.setattr(stale_pages, "git", lambda *_: "d\nc\nb")
    assert stale_pages.commits_since("a", ("src/new",)) == 2
    assert stale_pages.commits_since("a", ("src/old/b.py",)) == 1
    assert stale_pages.commits_since("a", ("docs",)) == 0


def test_a_command_writes_its_page_with_a_stamp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stamp is below the title, or the first between two marks; where only a part is measured, it stays."""
    monkeypatch.setattr(stale_pages, "DOCUMENTS", tmp_path)
    answers = {"show": "abcdef1 2026-11-27", "status": ""}
    monkeypatch.setattr(stale_pages, "git", lambda command, *_: answers[command])
    page = tmp_path / "libraries.md"
    described = "The results on this page come from the code in `src/ullage/gpu`, `benchmarks/libraries`.\n\n"
    stale_pages.write_page(page, "# Title\n\nText\n")
    first = "Written by `make libraries` at commit abcdef1 (2026-11-27)"
    assert page.read_text() == f"# Title\n\n{first}.\n{described}Text\n"
    assert stale_pages.STAMP.search(page.read_text())
    assert stale_pages.without_stamp(page.read_text()) == "# Title\n\nText\n"
    answers |= {"show": "1234567 2026-11-28", "status": " M file"}
    for _ in range(2):
        stale_pages.write_page(page, "# Title\n\nOther\n", part=True)
        assert page.read_text() == f"# Title\n\n{first}; some rows are newer.\n{described}Other\n"
    page.write_text("before\n<!-- a -->\nold\n<!-- end -->\nafter\n")
    stale_pages.write_page(page, "new\n", between=("<!-- a -->\n", "<!-- end -->"))
    second = "Written by `make libraries` at commit 1234567 (2026-11-28), with changes that are not committed"
    whole = f"before\n<!-- a -->\n\n{second}.\n{described}new\n\n<!-- end -->\nafter\n"
    assert page.read_text() == whole
    assert stale_pages.STAMP.search(whole)
    with pytest.raises(SystemExit, match="has no place for the table"):
        stale_pages.write_page(page, "new", between=("<!-- b -->\n", "<!-- end -->"))
    stale_pages.write_page(tmp_path / "mine.md", "# Title\n\nText\n")
    assert (tmp_path / "mine.md").read_text() == "# Title\n\nText\n"
