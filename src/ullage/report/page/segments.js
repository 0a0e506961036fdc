// Draws the allocator's segments at one moment: all to one scale, one behind the other like the words of a text.
"use strict";

const ROW = 16;
const GAP = 5;
const ROW_BYTES = 2 ** 25; // a row stands for this much at least

// The segments at a moment by kind, each with its blocks; pages of an expandable segment that touch are one.
function segmentsAt(lives, moment) {
  const { born, address, size_bytes, is_page, kind, kinds } = lives.history.segments;
  const there = [];
  for (let id = 0; id < born.length; id++) if (born[id] <= moment && lives.segmentGone[id] > moment) there.push(id);
  there.sort((a, b) => address[a] - address[b]);
  const segments = [];
  for (const id of there) {
    const last = segments[segments.length - 1];
    const goes_on = last && is_page[id] && last.is_page && last.kind === kind[id] && last.end === address[id];
    if (goes_on) last.end += size_bytes[id];
    else
      segments.push({
        start: address[id],
        end: address[id] + size_bytes[id],
        kind: kind[id],
        is_page: is_page[id],
        blocks: [],
      });
  }
  place(segments, lives, moment);
  return kinds.map((name, index) => ({ name, segments: segments.filter((segment) => segment.kind === index) }));
}

function place(segments, lives, moment) {
  const { address } = lives.history.blocks;
  const alive = Float64Array.from(lives.alive(moment));
  const where = new Map();
  for (const id of alive) where.set(address[id], id);
  let index = 0;
  for (const at of alive.map((id) => address[id]).sort()) {
    while (index < segments.length - 1 && at >= segments[index].end) index++;
    const segment = segments[index];
    if (segment && at >= segment.start && at < segment.end) segment.blocks.push(where.get(at));
  }
}

const lengthOf = (segment) => segment.end - segment.start;
const usedOf = (segment, lives) => segment.blocks.reduce((sum, id) => sum + lives.size[id], 0);

// Where everything lies: pixels along rows of `width`, with a heading above each kind.
function layoutOf(kinds, width) {
  const shown = kinds.filter(({ segments }) => segments.length);
  const total = shown.reduce((sum, { segments }) => segments.reduce((all, each) => all + lengthOf(each), sum), 0);
  const rows = Math.min(isNarrow() ? 24 : 14, Math.ceil(total / ROW_BYTES));
  const perPixel = Math.max(1, total / (Math.max(1, rows) * width));
  let top = 0;
  const bands = shown.map(({ name, segments }) => {
    const band = { name, top, segments: [] };
    let along = 0;
    for (const segment of segments) {
      const length = Math.max(2, lengthOf(segment) / perPixel);
      band.segments.push({ segment, along, length });
      along += length + 2;
    }
    band.rows = Math.ceil(along / width);
    top += 22 + band.rows * (ROW + GAP);
    return band;
  });
  return { bands, perPixel, width, height: Math.max(top, 1) };
}

// Draws a stretch of a band, broken at the ends of rows.
function stretch(context, layout, band, from, to) {
  for (let at = from; at < to - 1e-6;) {
    const row = Math.floor(at / layout.width + 1e-9);
    const end = Math.min(to, (row + 1) * layout.width);
    context.fillRect(at - row * layout.width, band.top + 22 + row * (ROW + GAP), end - at, ROW);
    at = end;
  }
}

function drawSegments(context, layout, lives, colourOfBlock, title) {
  context.clearRect(0, 0, layout.width, layout.height);
  const cached = styleOf("--cached");
  for (const band of layout.bands) {
    context.fillStyle = styleOf("--quiet");
    context.font = "13px system-ui, sans-serif";
    context.fillText(title(band), 0, band.top + 15, layout.width);
    for (const { segment, along, length } of band.segments) {
      context.fillStyle = cached;
      stretch(context, layout, band, along, along + length);
      const scale = length / lengthOf(segment);
      let drawn = -1;
      for (const id of segment.blocks) {
        const from = along + (lives.history.blocks.address[id] - segment.start) * scale;
        const to = from + lives.size[id] * scale;
        if (to - drawn < 0.5) continue; // lies within what is drawn
        context.fillStyle = colourOfBlock(id);
        stretch(context, layout, band, Math.max(from, drawn), to - from > 3 ? to - 0.7 : to);
        drawn = to;
      }
    }
  }
}

// What lies under the pointer: a segment, and the block or the hole in it.
function segmentAt(layout, lives, x, y) {
  const band = layout.bands.findLast((each) => y >= each.top + 22);
  if (!band) return null;
  const row = Math.floor((y - band.top - 22) / (ROW + GAP));
  if (row >= band.rows || (y - band.top - 22) % (ROW + GAP) > ROW) return null;
  const along = row * layout.width + x;
  const found = band.segments.findLast((each) => each.along <= along);
  if (!found || along > found.along + found.length) return null;
  const { segment } = found;
  const address = segment.start + ((along - found.along) / found.length) * lengthOf(segment);
  const addresses = lives.history.blocks.address;
  const id = segment.blocks.findLast((each) => addresses[each] <= address);
  if (id !== undefined && address < addresses[id] + lives.size[id]) return { segment, id };
  const start = id === undefined ? segment.start : addresses[id] + lives.size[id];
  const next = segment.blocks.find((each) => addresses[each] > address);
  return { segment, id: -1, hole: (next === undefined ? segment.end : addresses[next]) - start };
}
