"""Draw what a layer of experts takes over draws and routings, docs/pictures/values-moe.svg, from runs made here.

python benchmarks/values/picture.py

The layer gives each expert as many rows as the one with the most has (`moe_padded` in programs/): of all ways to run
experts the one in which routing decides most. Each dot is a run.
"""

from html import escape
from pathlib import Path
from typing import Final

from runs import ALL, DRAWN, load, run

PICTURE: Final = Path(__file__).resolve().parents[2] / "docs" / "pictures" / "values-moe.svg"
PROGRAM: Final = "moe_padded"
DRAWS: Final = 10
ROUTINGS: Final = ("balanced", "drawn", "1", "2", "worst")
TEXTS: Final = {
    "balanced": "--routing balanced",
    "drawn": "drawn, seeds 0 to 9",
    "1": "--routing 1",
    "2": "--routing 2",
    "worst": "--routing worst",
    ALL: "everything computed",
}
WIDTH, LEFT, RIGHT, TOP, ROW, RADIUS = 760, 190, 40, 40, 34, 5
DOT, REAL, TEXT, LINE = "#3b6ea5", "#c0392b", "#808080", "#80808050"
MIB: Final = 1 << 20


def picture(peaks: dict[str, list[int]]) -> str:
    """Return a picture of peaks, by routing."""
    most = max(max(each) for each in peaks.values()) / MIB
    step = 10 ** len(str(int(most / 5))) // 2
    step = step if most / step <= 8 else 2 * step
    end = (int(most / step) + 1) * step
    height = TOP + ROW * len(peaks) + 20

    def at(mebibytes: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * mebibytes / end

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        f'font-size="13" fill="{TEXT}">',
        "<title>Peak memory of a layer of experts over draws and routings</title>",
    ]
    for mark in range(0, end + 1, step):
        x = at(mark)
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 8}" y2="{height - 12}" stroke="{LINE}"/>')
        parts.append(f'<text x="{x:.1f}" y="{TOP - 16}" text-anchor="middle">{mark} MiB</text>')
    for number, (routing, each) in enumerate(peaks.items()):
        y = TOP + ROW * number + ROW // 2
        parts.append(f'<text x="{LEFT - 14}" y="{y + 4}" text-anchor="end">{escape(TEXTS[routing])}</text>')
        for peak in each:
            colour = REAL if routing == ALL else DOT
            x = at(peak / MIB)
            parts.append(f'<circle cx="{x:.1f}" cy="{y}" r="{RADIUS}" fill="{colour}" fill-opacity="0.6"/>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def main() -> None:
    """Make the runs, and the picture."""
    load()
    peaks = {
        routing: [
            run(PROGRAM, DRAWN, seed=seed, routing=routing).peak_bytes
            for seed in range(DRAWS if routing == DRAWN else 1)
        ]
        for routing in ROUTINGS
    }
    peaks[ALL] = [run(PROGRAM, ALL, data_seed=seed).peak_bytes for seed in range(3)]
    PICTURE.write_text(picture(peaks), encoding="utf-8")
    for routing, each in peaks.items():
        print(f"{TEXTS[routing]}: {min(each) / MIB:.1f} to {max(each) / MIB:.1f} MiB")


if __name__ == "__main__":
    main()
