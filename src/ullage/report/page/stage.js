// The canvas of blocks over time: drawn in slices that leave the page alive, with axes, and what lies under a pointer.
"use strict";

const SLICE_MS = 10;
const MOST_COLUMNS = 1400;
const COARSE = 10_000_000; // blocks times columns that can be drawn at once
const AXIS = { left: 66, bottom: 34, top: 8 };

class Stage {
  constructor(canvas, lives, { height, hasAxes }) {
    Object.assign(this, { canvas, lives, height, hasAxes });
    this.margin = hasAxes ? AXIS : { left: 0, bottom: 0, top: 0 };
    this.image = document.createElement("canvas");
    this.drawn = null;
    this.turn = 0;
  }

  // The part of the canvas that has blocks: its width and height.
  size() {
    const width = Math.max(40, this.canvas.clientWidth - this.margin.left);
    return { width, height: this.height - this.margin.bottom - this.margin.top };
  }

  // Draws anew, where there is much to draw coarsely at first; what was asked for before and is not done is given up.
  async draw(view, looks, smallest, progress = () => {}) {
    const turn = ++this.turn;
    await pause();
    if (turn !== this.turn) return false;
    const { width, height } = this.size();
    const columns = Math.min(Math.round(width * Math.min(devicePixelRatio, 2)), MOST_COLUMNS);
    const rows = Math.round((height * columns) / width);
    const found = columnsOf(this.lives, view, columns);
    let top = 1;
    for (const moment of found.at) top = Math.max(top, this.lives.reserved[moment], this.lives.active[moment]);
    const limit = this.lives.history.limit_bytes;
    if (limit !== null && limit < 1.4 * top) top = Math.max(top, limit);
    top = view.heights ? view.heights[1] : 1.06 * top;
    const floor = view.heights ? view.heights[0] : 0;
    const image = new ImageData(columns, rows);
    const pixels = new Uint32Array(image.data.buffer);
    const work = columns * this.lives.alive(found.at[columns >> 1]).length;
    for (const stride of work > COARSE ? [Math.ceil(work / COARSE), 1] : [1]) {
      const area = { pixels, width: columns, height: rows, floor, top, stride };
      if (!(await this.inSlices(strata(this.lives, found, { ...looks, smallest }, area), turn))) return false;
      Object.assign(this.image, { width: columns, height: rows });
      this.image.getContext("2d").putImageData(image, 0, 0);
      this.drawn = { view, columns: found.at, floor, top, smallest };
      if (stride > 1) progress();
    }
    return true;
  }

  // Whether something was done to its end, and nothing else was asked for meanwhile.
  async inSlices(steps, turn) {
    let began = performance.now();
    for (const _ of steps) {
      if (performance.now() - began < SLICE_MS) continue;
      await pause();
      if (turn !== this.turn) return false;
      began = performance.now();
    }
    return true;
  }

  // Puts the picture and what lies over it onto the canvas.
  show(extras) {
    if (!this.drawn) return;
    const ratio = Math.min(devicePixelRatio, 2);
    const { width, height } = this.size();
    const { left, top } = this.margin;
    Object.assign(this.canvas, { width: (left + width) * ratio, height: this.height * ratio });
    this.canvas.style.height = `${this.height}px`;
    const context = this.canvas.getContext("2d");
    context.scale(ratio, ratio);
    context.imageSmoothingEnabled = false;
    context.drawImage(this.image, left, top, width, height);
    if (this.hasAxes) this.axes(context);
    extras(context, { left, top, width, height });
  }

  axes(context) {
    const { view, floor, top } = this.drawn;
    const { width, height } = this.size();
    const { left, top: above } = this.margin;
    Object.assign(context, {
      font: "12px system-ui, sans-serif",
      fillStyle: styleOf("--quiet"),
      strokeStyle: styleOf("--line"),
    });
    context.textAlign = "right";
    const { tickvals, ticktext } = sizeTicks(top, floor);
    tickvals.forEach((bytes, index) => {
      const y = above + height * (1 - (bytes - floor) / (top - floor));
      context.fillText(ticktext[index], left - 6, y + 4);
      context.globalAlpha = 0.6;
      context.fillRect(left, Math.round(y), width, 0.5);
      context.globalAlpha = 1;
    });
    context.textAlign = "center";
    for (const [place, text] of this.ticks(view, Math.max(2, Math.floor(width / 95)))) {
      const x = left + ((place - view.from) / (view.to - view.from)) * width;
      context.fillRect(x, above + height, 0.5, 5);
      if (x + 30 < left + width) context.fillText(text, Math.max(x, left + 8), above + height + 18);
    }
    context.textAlign = "right";
    context.fillText(view.byTime ? "time" : "event", left + width, above + height + 31);
  }

  // Round times, or round numbers of events, each with its place on the axis and its text.
  *ticks(view, most) {
    const { lives } = this;
    const numbers = lives.history.event;
    const [first, last] = view.byTime
      ? [view.from, view.to]
      : [numbers[lives.at(view.from, false)], numbers[lives.at(view.to, false)]];
    const step = view.byTime ? stepOf(last - first, most) : Math.max(1, stepOf(last - first || 1, most));
    for (let at = Math.ceil(first / step) * step; at <= last; at += step)
      yield view.byTime ? [at, tickText(at, step)] : [lives.momentOf(at), countText(at)];
  }

  // Bytes and moment under a pointer; null outside.
  under(event) {
    if (!this.drawn) return null;
    const box = this.canvas.getBoundingClientRect();
    const { width, height } = this.size();
    const [x, y] = [event.clientX - box.left - this.margin.left, event.clientY - box.top - this.margin.top];
    if (x < 0 || x >= width || y < 0 || y > height) return null;
    const { columns, floor, top, view } = this.drawn;
    const moment = columns[Math.min(columns.length - 1, Math.floor((x / width) * columns.length))];
    return {
      moment,
      bytes: floor + (1 - y / height) * (top - floor),
      row: y,
      share: x / width,
      place: view.from + (x / width) * (view.to - view.from),
    };
  }
}
