// Draws blocks over time as they lie upon each other, the oldest at the bottom: one column of pixels after the other.
"use strict";

const FINE = 12; // events in a column of pixels: with more of them, the edges of blocks are noise
const WORK = 200_000; // blocks looked at between two moments at which people are heard

// For each of so many columns between two places of the axis: the fullest moment in it, and the fewest bytes.
function columnsOf(lives, view, width) {
  const at = new Int32Array(width);
  const fewest = new Float64Array(width);
  let first = lives.at(view.from, view.byTime);
  for (let column = 0; column < width; column++) {
    const end = view.from + ((column + 1) / width) * (view.to - view.from);
    const last = column === width - 1 ? lives.at(view.to, view.byTime) : lives.at(end, view.byTime);
    let [most, least] = [first, lives.active[first]];
    for (let moment = first + 1; moment <= last; moment++) {
      if (lives.active[moment] > lives.active[most]) most = moment;
      if (lives.active[moment] < least) least = lives.active[moment];
    }
    at[column] = most;
    fewest[column] = least;
    first = last;
  }
  return { at, fewest };
}

// Fills `pixels` (width x height, row 0 at the top) with what lies between two heights in bytes; yields often, so that
// the page stays alive meanwhile. Of every `stride` columns one is drawn, and repeated.
function* strata(lives, columns, paint, { pixels, width, height, floor, top, stride }) {
  const { born, freed, gone, size } = lives;
  const { looks, pale, lookOf, smallest, empty, pending, small, edge } = paint;
  const perRow = (top - floor) / height;
  const rowOf = (bytes) => Math.round(((bytes - floor) / (top - floor)) * height);
  const rest = lives.history.small_bytes;
  let alive = [];
  let next = 0;
  let before = -1;
  const is_fine = columns.at[width - 1] - columns.at[0] <= FINE * width;
  let has_edge = false;
  let work = 0;
  for (let column = 0; column < width; column++) {
    const moment = columns.at[column];
    const is_same = !has_edge && moment === before && columns.fewest[column] === columns.fewest[column - 1];
    if (column % stride || is_same) {
      for (let i = column; i < pixels.length; i += width) pixels[i] = pixels[i - 1];
      continue;
    }
    const born_until = lives.after(moment);
    work += born_until - next;
    for (; next < born_until; next++) if (gone[next] > moment) alive.push(next);
    let kept = 0;
    let bytes = rest.length ? rest[moment] : 0;
    for (let i = 0; i < alive.length; i++) {
      const id = alive[i];
      if (gone[id] <= moment) continue;
      alive[kept++] = id;
      if (size[id] < smallest) bytes += size[id];
    }
    alive.length = kept;
    const constant = rowOf(columns.fewest[column]);
    let row = 0;
    has_edge = false;
    const fill = (to, look, shade, rim) => {
      const end = Math.min(to, height);
      for (; row < end; row++) {
        const colour = row < constant ? look : shade;
        pixels[(height - 1 - row) * width + column] = rim && row === end - 1 ? edge : colour;
      }
    };
    fill(rowOf(bytes), small, small, false);
    for (let i = 0; i < kept; i++) {
      const id = alive[i];
      if (size[id] < smallest) continue;
      bytes += size[id];
      if (bytes < floor + (row + 0.5) * perRow) continue; // within the row of pixels that is drawn already
      const to = rowOf(bytes);
      if (to <= row) continue;
      const is_tall = to - row > 3 && is_fine;
      if (freed[id] <= moment) fill(to, pending, pending, is_tall);
      else if (is_tall && before >= 0 && born[id] > before && gone[id] > columns.at[Math.min(column + 2, width - 1)]) {
        fill(to, edge, edge, false); // where a block begins, if more of it follows
        has_edge = true;
      } else fill(to, looks[lookOf[id]], pale[lookOf[id]], is_tall);
    }
    fill(height, empty, empty, false);
    before = moment;
    work += kept + height;
    if (work > WORK) yield (work = 0);
  }
}

// The block at a height in bytes at a moment, or -1: what `strata` has drawn there.
function blockAt(lives, moment, bytes, smallest) {
  const alive = lives.alive(moment);
  let level = lives.history.small_bytes.length ? lives.history.small_bytes[moment] : 0;
  for (const id of alive) if (lives.size[id] < smallest) level += lives.size[id];
  if (bytes < level) return -1;
  for (const id of alive) {
    if (lives.size[id] < smallest) continue;
    level += lives.size[id];
    if (bytes < level) return id;
  }
  return -1;
}
