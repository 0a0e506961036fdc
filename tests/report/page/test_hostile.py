"""Files of others on the page: texts stay texts, and a file with little in it is shown as far as it goes."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .conftest import Shown

EVIL = '</script><img src=x onerror="window.intruder = 1"><script>window.intruder = 1</script>{{ 7 * 7 }}'
BASE = 0x7F0000000000
MIB = 1 << 20
Show = Callable[[Path], Shown]


def snapshot(*, trace: list[dict[str, Any]], segments: list[dict[str, Any]]) -> bytes:
    return pickle.dumps({"segments": segments, "device_traces": [trace]})


def entry(action: str, address: int, size: int, **more: Any) -> dict[str, Any]:
    frames = [{"filename": f"/home/{EVIL}.py", "name": EVIL, "line": 7}]
    return {"action": action, "addr": address, "size": size, "stream": 0, "frames": frames, **more}


def test_texts_of_a_file_become_neither_elements_nor_scripts(shown: Show, tmp_path: Path) -> None:
    file = tmp_path / "evil.pickle"
    trace = [entry("segment_alloc", BASE, 20 * MIB), entry("alloc", BASE, 16 * MIB)]
    trace += [entry("alloc", BASE + 16 * MIB, 2 * MIB), entry("free_requested", BASE + 16 * MIB, 2 * MIB)]
    trace += [entry("free_completed", BASE + 16 * MIB, 2 * MIB)]
    file.write_bytes(snapshot(trace=trace, segments=[]))
    found = shown(file)
    found.open()
    x, y, width, height = found.box("strata")
    place = (x + 0.8 * width, y + 0.75 * height)
    found.browser.mouse("move", *place)
    assert EVIL in found.ask("e.$('tip').textContent")
    found.browser.mouse("press", *place, pressed=True)
    found.browser.mouse("release", *place)
    assert EVIL in found.ask("e.$('chosen').textContent")
    assert EVIL.split("/")[-1] in found.ask("e.$('legend').textContent")
    found.choose("find", EVIL, "input")
    assert found.browser.value("document.querySelectorAll('img, iframe, object, embed, base').length") == 0
    assert found.browser.value("typeof window.intruder") == "undefined"
    scripts = found.browser.value(
        "[...document.scripts].filter((each) => !each.type && each.textContent.includes('intruder')).length"
    )
    assert scripts == 0
    assert (found.browser.errors, found.browser.requests) == ([], [])


def test_a_file_without_a_trace_shows_its_segments(shown: Show, tmp_path: Path) -> None:
    blocks = [
        {"size": 8 * MIB, "requested_size": 8 * MIB, "address": BASE, "state": "active_allocated", "frames": []},
        {"size": 12 * MIB, "requested_size": 0, "address": BASE + 8 * MIB, "state": "inactive", "frames": []},
    ]
    segment = {"address": BASE, "total_size": 20 * MIB, "stream": 0, "segment_type": "large", "blocks": blocks}
    file = tmp_path / "state.pickle"
    file.write_bytes(snapshot(trace=[], segments=[segment]))
    found = shown(file)
    found.open(400)
    assert found.ask("e.panel.layout.bands.length") == 1
    assert found.box("strata")[2:] == [0, 0], "there is no time to draw"
    assert found.ask("e.$('levels').textContent").startswith(
        "20.0 MiB reserved: 8.0 MiB allocated, 12.0 MiB cached (empty here)"
    )
    assert (found.browser.errors, found.browser.requests) == ([], [])
    assert found.browser.value("[document.documentElement.scrollWidth, innerWidth]") == [400, 400]


@pytest.mark.parametrize("deed", ["next", "previous", "in", "out", "left", "behind", "first"])
def test_the_shortest_recording_bears_every_button(shown: Show, tmp_path: Path, deed: str) -> None:
    file = tmp_path / "short.pickle"
    file.write_bytes(snapshot(trace=[entry("segment_alloc", BASE, 20 * MIB), entry("alloc", BASE, MIB)], segments=[]))
    found = shown(file)
    found.open()
    for _ in range(3):
        found.click(deed)
    assert found.browser.errors == []
