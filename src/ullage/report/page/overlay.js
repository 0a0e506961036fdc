// What lies over the pictures of blocks over time: lines, their labels, and what is chosen.
"use strict";

// In the overview: what is shown below.
function frameOver(explorer, context, { width, height }) {
  const { view } = explorer.overview.drawn;
  const [from, to] = [explorer.view.from, explorer.view.to].map(
    (place) => ((place - view.from) / (view.to - view.from)) * width,
  );
  context.fillStyle = styleOf("--veil");
  context.fillRect(0, 0, from, height);
  context.fillRect(to, 0, width - to, height);
  context.strokeStyle = styleOf("--ink");
  context.strokeRect(from + 0.5, 0.5, Math.max(2, to - from - 1), height - 1);
}

// Over the blocks: reserved memory, the room, ends of steps, and the moment that is shown.
function linesOver(explorer, context, area) {
  const { view, columns, floor, top } = explorer.strata.drawn;
  const { left, width, height } = area;
  const x = (moment) =>
    left + ((explorer.lives.place(moment, view.byTime) - view.from) / (view.to - view.from)) * width;
  const y = (bytes) => area.top + height * (1 - (bytes - floor) / (top - floor));
  context.save();
  context.beginPath();
  context.rect(left, area.top, width, height);
  context.clip();
  context.strokeStyle = context.fillStyle = styleOf("--quiet");
  context.beginPath();
  columns.forEach((moment, column) =>
    context.lineTo(left + (column / columns.length) * width, y(explorer.lives.reserved[moment])),
  );
  context.lineTo(left + width, y(explorer.lives.reserved[columns[columns.length - 1]]));
  context.stroke();
  const inside = explorer.history.step_ends.filter((moment) => x(moment) > left && x(moment) < left + width);
  context.setLineDash([2, 4]);
  if (inside.length < width / 12)
    for (const moment of inside) context.strokeRect(Math.round(x(moment)) + 0.5, area.top, 0, height);
  context.setLineDash([]);
  const { limit_bytes: limit } = explorer.history;
  const label = (text, colour, bytes, align, down) => {
    Object.assign(context, { font: "12px system-ui, sans-serif", textAlign: align, fillStyle: colour });
    context.fillText(text, align === "left" ? left + 6 : left + width - 6, y(bytes) + down);
  };
  let most = 0;
  for (const moment of columns) most = Math.max(most, explorer.lives.reserved[moment]);
  const is_below_limit = limit !== null && limit < top && y(most) - y(limit) < 16;
  label(`at most ${sizeText(most)} reserved`, styleOf("--quiet"), most, "right", is_below_limit ? 14 : -4);
  if (limit !== null && limit < top) {
    label(explorer.history.limit_label, styleOf("--bad"), limit, "left", -4);
    context.fillRect(left, y(limit), width, 1.5);
  }
  context.fillStyle = styleOf("--ink");
  context.fillRect(x(explorer.moment) - 0.75, area.top, 1.5, height);
  context.restore();
  if (explorer.dragged) {
    context.fillStyle = styleOf("--veil");
    const [from, to] = explorer.dragged.map(({ share }) => left + share * width);
    const [one, other] = isTall(explorer.dragged)
      ? explorer.dragged.map(({ row }) => area.top + row)
      : [area.top, area.top + height];
    context.fillRect(Math.min(from, to), Math.min(one, other), Math.abs(to - from), Math.abs(other - one));
  }
}
