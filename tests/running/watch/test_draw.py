"""What is drawn of views that are hard to draw; nothing is looked at and no terminal is needed."""

import json
from dataclasses import replace
from typing import Any

import pytest
from rich.text import Text

from ullage.base.units import GIB, MIB
from ullage.running.watch.detail import plot
from ullage.running.watch.draw import Display, Page, draw, shortened
from ullage.running.watch.plain import JsonLines, PlainText
from ullage.running.watch.view import CardHolder, CardRow, DeviceRow, Inside, View

SIZES = ((80, 24), (120, 40), (60, 20), (40, 10))
LONG = "a-very-long-name-" * 12


def device(**changes: Any) -> DeviceRow:
    fields: dict[str, Any] = {
        "index": 0,
        "card_name": "Tesla T4",
        "allocated_bytes": 4 * GIB,
        "reserved_bytes": 6 * GIB,
        "limit_bytes": 15 * GIB,
        "headroom_bytes": 8 * GIB,
        "peak_bytes": 5 * GIB,
        "peak_step": 88,
        "peak_line": "train.py:33",
        "split_bytes": 0,
        "retries": 0,
        "peaks": tuple(range(GIB, 5 * GIB, 64 * MIB)),
        "peak_steps": tuple(range(1, 65)),
        "overview": (GIB, 5 * GIB),
    }
    return DeviceRow(**fields | changes)


def inside(pid: int = 4242, **changes: Any) -> Inside:
    fields: dict[str, Any] = {
        "pid": pid,
        "command": "train.py --batch-size 8",
        "folder": "/runs/1",
        "host": "",
        "rank": None,
        "world_size": None,
        "state": "runs",
        "is_alive": True,
        "steps": 64,
        "step_seconds": 0.25,
        "quiet_seconds": 0.1,
        "devices": (device(),),
        "roles": (("parameters", GIB), ("the rest", 3 * GIB)),
    }
    return Inside(**fields | changes)


def card(index: int = 0, **changes: Any) -> CardRow:
    fields: dict[str, Any] = {"index": index, "name": "Tesla T4", "total_bytes": 15 * GIB, "used_bytes": 7 * GIB}
    return CardRow(**fields | changes)


def view(**changes: Any) -> View:
    return View(**{"time": 1.8e9, "subject": "all GPUs"} | changes)


HARD = {
    "nothing at all": view(),
    "no card": view(notes=("The driver cannot be queried: there is no driver.",), processes=(inside(),)),
    "eight cards": view(cards=tuple(card(index) for index in range(8)), processes=(inside(),)),
    "64 processes": view(cards=(card(),), processes=tuple(inside(pid, rank=pid, world_size=64) for pid in range(64))),
    "names of 200 letters": view(
        subject=LONG,
        cards=(card(name=LONG, holders=(CardHolder(pid=1, name=LONG, used_bytes=GIB, is_ours=False),)),),
        processes=(inside(command=LONG, state="out of memory", evidence=(LONG,), growth=(LONG,), ooms=2),),
    ),
    "no sample": view(cards=(card(),), processes=(inside(devices=(), roles=(), steps=0, quiet_seconds=None),)),
    "one sample of nothing": view(
        processes=(
            inside(
                devices=(
                    device(
                        peaks=(0,),
                        peak_steps=(0,),
                        overview=(),
                        limit_bytes=0,
                        peak_bytes=0,
                        allocated_bytes=0,
                        reserved_bytes=0,
                    ),
                )
            ),
        )
    ),
    "a card of no bytes": view(cards=(card(total_bytes=0, used_bytes=0),)),
    "wide letters": view(processes=(inside(command="訓練" * 60),), notes=("記憶體" * 40,)),
    "eight devices": view(processes=(inside(devices=tuple(device(index=index) for index in range(8))),)),
}


def words_of(lines: list[Text] | tuple[Text, ...]) -> str:
    return "".join(line.plain for line in lines).replace(" ", "")


def all_of(what: View, display: Display) -> list[Text]:
    """The lower part, line by line, as a person reads it who moves it down by one."""
    first = draw(what, display)
    if not first.most_scroll:
        return list(first.lines)
    moved = draw(what, replace(display, scroll=1)).lines
    top = next(number for number, pair in enumerate(zip(first.lines, moved, strict=True)) if pair[0] != pair[1])
    pages = [draw(what, replace(display, scroll=scroll)).lines for scroll in range(first.most_scroll + 1)]
    return [*(page[top] for page in pages), *pages[-1][top + 1 :]]


@pytest.mark.parametrize("name", HARD)
@pytest.mark.parametrize("page", Page)
def test_every_view_fills_every_size(name: str, page: Page) -> None:
    """As many lines as the screen has, none wider, whatever is shown; the way out is always on the last."""
    for number, (width, height) in enumerate((*SIZES, (1, 1), (10, 3))):
        shown = draw(HARD[name], Display(width=width, height=height, page=page, is_whole=number % 2 == 1, chosen=99))
        assert len(shown.lines) == height, (width, height)
        assert max(line.cell_len for line in shown.lines) <= width, (width, height)
        if width >= 40:
            assert shown.lines[-1].plain.startswith("q quit")


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_nothing_is_cut_off_for_good(width: int, height: int) -> None:
    """Every word about a process and a card can be read, by moving the lower part down where it does not fit."""
    hard = HARD["names of 200 letters"]
    for page, expected in (
        (Page.PROCESS, [LONG, "outofmemory2times", f"ullageexplain{LONG}", "allocated4.00GiB", "cached2.00GiB",
                        "headroom8.00GiB", "retries0", "parameters1.00GiB", "therest3.00GiB", "limit15.00GiB"]),
        (Page.CARDS, [LONG, "7.00GiBof15.00GiB", "1.00GiBbyprocess1", "anotheruser's", "6.00GiBmore"]),
    ):  # fmt: skip
        seen = words_of(all_of(hard, Display(width=width, height=height, page=page)))
        for text in expected:
            assert text.replace(" ", "") in seen, text


def test_the_chosen_process_is_always_on_the_screen() -> None:
    for chosen in range(64):
        lines = draw(HARD["64 processes"], Display(width=80, height=24, chosen=chosen)).lines
        assert [line.plain.split()[1] for line in lines if line.plain.startswith(">")] == [str(chosen)]
        assert any(f"{chosen + 1}/64" in line.plain for line in lines)


def test_cards_that_do_not_fit_are_summed() -> None:
    lines = draw(HARD["eight cards"], Display(width=80, height=24)).lines
    assert [line.plain for line in lines if "more GPUs" in line.plain] == [
        "5 more GPUs: 35.00 GiB of 75.00 GiB used; c: show all"
    ]


def test_what_is_urgent_stands_above_the_picture() -> None:
    """At 80x24 evidence, growth and the numbers are seen with no key pressed."""
    hot = inside(evidence=("runs/oom-1-1",), ooms=1, growth=("leak at step 40: every train step keeps 64.0 KiB more",))
    lines = draw(view(cards=(card(),), processes=(hot, inside(2))), Display(width=80, height=24)).lines
    text = [line.plain for line in lines]
    assert "  ullage explain runs/oom-1-1" in text
    assert any(line.startswith("leak at step 40") for line in text)
    assert any("█" in line and "▔" not in line for line in text[10:])


# ---- the picture of peaks


def rows_of(values: list[int], **changes: Any) -> list[str]:
    settings = {"limit_bytes": 16 * GIB, "width": 19, "height": 4, "moves": True} | changes
    return [line.plain for line in plot(values, **settings)]


def test_the_picture_is_to_scale_with_its_limit() -> None:
    assert rows_of([4 * GIB, 8 * GIB, 14 * GIB, 16 * GIB]) == [
        " 16.00 GiB ▔▔▄█▔▔▔▔",
        "             ██    ",
        "            ███    ",
        "         0 ████    ",
    ]


def test_the_latest_steps_move_and_the_whole_run_keeps_every_height() -> None:
    """A single high step among 800 is seen over the whole run; moving shows the last eight."""
    values = [4 * GIB] * 800
    values[100] = 16 * GIB
    assert rows_of(values) == rows_of([4 * GIB] * 8)
    assert rows_of(values, moves=False)[0].count("█") == 1


def test_a_limit_far_above_does_not_flatten_the_picture() -> None:
    rows = rows_of([GIB, 2 * GIB], limit_bytes=80 * GIB)
    assert rows[0].startswith("  2.25 GiB")
    assert "▔" not in "".join(rows)


def test_what_is_above_the_limit_is_drawn_with_the_limit_below_it() -> None:
    rows = rows_of([16 * GIB, 2 * GIB], limit_bytes=8 * GIB)
    assert rows[0].startswith(" 16.00 GiB █")
    assert "─" in rows[1]


@pytest.mark.parametrize("width", range(1, 12))
def test_a_name_that_is_too_long_keeps_both_ends(width: int) -> None:
    text = shortened("abcdefghijkl", width)
    assert len(text) == width
    assert width < 3 or (text[0], text[-1]) == ("a", "l")


# ---- lines


@pytest.mark.parametrize("name", HARD)
def test_a_json_line_is_one_object_with_its_schema(name: str) -> None:
    """Strict JSON (no NaN), one line, bytes as whole numbers, and cached is reserved less allocated."""
    [line] = JsonLines().lines_of(HARD[name])
    assert "\n" not in line
    answer = json.loads(line, parse_constant=lambda text: pytest.fail(text))
    assert (answer["schema"], len(answer["processes"])) == (1, len(HARD[name].processes))
    for one in answer["processes"]:
        assert isinstance(one["roles"], dict)
        for each in one["devices"]:
            assert each["cached_bytes"] == each["reserved_bytes"] - each["allocated_bytes"]
            assert all(isinstance(value, int) for key, value in each.items() if key.endswith("_bytes"))


def test_plain_lines_say_once_what_stays() -> None:
    """Cards and processes have a line each time; a note, a finding, evidence and an end only the first time."""
    lines = PlainText()
    running = view(cards=(card(),), processes=(inside(growth=("leak",)),), notes=("a note",))
    first, second = list(lines.lines_of(running)), list(lines.lines_of(running))
    assert len(first) == 4
    assert len(second) == 2
    ended = replace(running, processes=(inside(growth=("leak",), state="ended", is_alive=False),))
    assert ["ended, step 64" in line for line in lines.lines_of(ended)] == [False, True]
    assert len(list(lines.lines_of(ended))) == 1


def test_plain_lines_name_who_else_is_on_a_card() -> None:
    others = tuple(CardHolder(pid=pid, name="python", used_bytes=pid * MIB, is_ours=True) for pid in (1, 2, 3, 4))
    [line] = PlainText().lines_of(view(cards=(card(holders=others),)))
    assert line.endswith(
        "7.00 GiB of 15.00 GiB used, 4 other processes with 10.0 MiB (4 python, 3 python, 2 python, ...)"
    )
