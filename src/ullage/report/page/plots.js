// Draws what has few points, by plotly.js: curves over a run, segments, and trials, in the colours of the page.
"use strict";
function layout(more) {
  const axis = {
    gridcolor: styleOf("--line"),
    zerolinecolor: styleOf("--line"),
    linecolor: styleOf("--line"),
    automargin: true,
  };
  const base = {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: styleOf("--ink"), family: "system-ui, sans-serif", size: 13 },
    margin: { l: 60, r: 10, t: 10, b: 40 },
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 },
    hoverlabel: { align: "left" },
  };
  const result = { ...base, ...more };
  if (isNarrow()) result.legend = { orientation: "h", x: 0, y: -0.2, yanchor: "top", font: { size: 10 } };
  for (const name of ["xaxis", "yaxis"]) result[name] = { ...axis, ...(more[name] || {}) };
  return result;
}
const draw = {
  stack(picture) {
    const length = picture.series.length ? picture.series[0][1].length : 0;
    const x = [...Array(length).keys()];
    const traces = picture.series.map(([label, values]) => ({
      type: "scatter",
      mode: "lines",
      stackgroup: "one",
      name: label,
      x,
      y: values,
      line: { width: 0.5, color: colourOf(label), shape: "hv" },
      fillcolor: colourOf(label),
      customdata: values.map((bytes) => sizeText(bytes)),
      hovertemplate: `${label}: %{customdata}<extra></extra>`,
    }));
    const highest = Math.max(1, ...x.map((at) => picture.series.reduce((sum, [, values]) => sum + values[at], 0)));
    const shapes = picture.marks.map((at) => ({
      type: "line",
      x0: at,
      x1: at,
      yref: "paper",
      y0: 0,
      y1: 1,
      line: { color: styleOf("--quiet"), width: 1, dash: "dot" },
    }));
    shapes.push(
      ...picture.bands.map(({ first, last }) => ({
        type: "rect",
        layer: "below",
        x0: first - 0.5,
        x1: last + 0.5,
        yref: "paper",
        y0: 0,
        y1: 1,
        line: { width: 0 },
        fillcolor: styleOf("--quiet"),
        opacity: 0.15,
      })),
    );
    const crowded = Math.ceil(picture.marks.length / (isNarrow() ? 2 : 8));
    const annotations = picture.marks.flatMap((at, index) =>
      index % crowded
        ? []
        : [
            {
              x: at,
              yref: "paper",
              y: 0,
              yanchor: "top",
              yshift: -4,
              text: `${picture.mark_label} ${index + 1}`,
              showarrow: false,
              font: { size: 11, color: styleOf("--quiet") },
            },
          ],
    );
    annotations.push(
      ...picture.bands.map(({ label, first, last }) => ({
        x: (first + last) / 2,
        yref: "paper",
        y: 1,
        yanchor: "bottom",
        textangle: last - first > length / 6 ? 0 : -30,
        text: label,
        showarrow: false,
        font: { size: 11, color: styleOf("--quiet") },
      })),
    );
    return [
      traces,
      layout({
        hovermode: "x unified",
        shapes,
        annotations,
        xaxis: {
          showticklabels: false,
          showgrid: false,
          title: { text: "the run, in the order of allocations", standoff: 22 },
        },
        yaxis: { ...sizeTicks(highest), rangemode: "tozero" },
      }),
    ];
  },
  map(picture) {
    const labels = [...new Set(picture.strips.flatMap((strip) => strip.blocks.map((block) => block[2])))];
    const order = Object.keys(colours);
    labels.sort((a, b) => order.indexOf(a) - order.indexOf(b));
    const rows = picture.strips.map((strip, index) => index);
    const frame = {
      type: "bar",
      orientation: "h",
      name: "cached",
      y: rows,
      x: picture.strips.map((strip) => strip.size_bytes),
      marker: { color: styleOf("--cached") },
      width: 0.85,
      customdata: picture.strips.map((strip) => [strip.name, sizeText(strip.size_bytes)]),
      hovertemplate: "segment %{customdata[0]}<br>%{customdata[1]}<extra></extra>",
    };
    const traces = labels.map((label) => {
      const blocks = picture.strips.flatMap((strip, row) =>
        strip.blocks.filter((block) => block[2] === label).map((block) => [row, ...block]),
      );
      return {
        type: "bar",
        orientation: "h",
        name: label,
        y: blocks.map((b) => b[0]),
        base: blocks.map((b) => b[1]),
        x: blocks.map((b) => b[2]),
        width: 0.85,
        marker: { color: colourOf(label), line: { width: 0.5, color: styleOf("--card") } },
        customdata: blocks.map((b) => [sizeText(b[2]), sizeText(b[1])]),
        hovertemplate: `${label}<br>%{customdata[0]} at offset %{customdata[1]}<extra></extra>`,
      };
    });
    const highest = Math.max(1, ...picture.strips.map((strip) => strip.size_bytes));
    return [
      [frame, ...traces],
      layout({
        barmode: "overlay",
        bargap: 0.15,
        xaxis: sizeTicks(highest),
        yaxis: { autorange: "reversed", showticklabels: false, showgrid: false },
        margin: { l: 10, r: 10, t: 10, b: 40 },
      }),
    ];
  },
  plot(picture) {
    const looks = {
      good: ["--good", "circle", picture.outcomes[0]],
      unsure: ["--unsure", "diamond", picture.outcomes[1]],
      bad: ["--bad", "x", picture.outcomes[2]],
    };
    const text = (y) => (picture.y_is_bytes ? sizeText(y) : `${y}`);
    const line = {
      type: "scatter",
      mode: "lines",
      name: picture.line_label,
      x: picture.line.map((p) => p[0]),
      y: picture.line.map((p) => p[1]),
      line: { color: styleOf("--quiet"), width: 2 },
      hoverinfo: "skip",
    };
    const traces = Object.entries(looks)
      .map(([tone, [name, symbol, label]]) => {
        const points = picture.points.filter((point) => point.tone === tone);
        return {
          type: "scatter",
          mode: "markers",
          name: label,
          x: points.map((p) => p.x),
          y: points.map((p) => p.y),
          customdata: points.map((p) => [text(p.y), p.remark]),
          marker: { color: styleOf(name), symbol, size: 11 },
          hovertemplate:
            `${picture.x_label} %{x}: ${picture.y_label} %{customdata[0]}` + "<br>%{customdata[1]}<extra></extra>",
        };
      })
      .filter((trace) => trace.x.length);
    const highest = Math.max(1, picture.limit || 0, ...picture.points.map((p) => p.y));
    const shapes = picture.limit
      ? [
          {
            type: "line",
            xref: "paper",
            x0: 0,
            x1: 1,
            y0: picture.limit,
            y1: picture.limit,
            line: { color: styleOf("--bad"), width: 1.5, dash: "dash" },
          },
        ]
      : [];
    const annotations = picture.limit
      ? [
          {
            xref: "paper",
            x: 0,
            xanchor: "left",
            y: picture.limit,
            yanchor: "bottom",
            text: picture.limit_label,
            showarrow: false,
            font: { size: 12, color: styleOf("--bad") },
          },
        ]
      : [];
    const isCounted = picture.points.every(({ x }) => Number.isInteger(x) && x < 8);
    const xaxis = { title: { text: picture.x_label }, rangemode: "tozero", ...(isCounted ? { dtick: 1 } : {}) };
    const yaxis = {
      title: { text: picture.y_label },
      rangemode: "tozero",
      ...(picture.y_is_bytes ? sizeTicks(highest * 1.1) : {}),
    };
    return [
      [line, ...traces],
      layout({
        hovermode: "closest",
        shapes,
        annotations,
        margin: { l: 70, r: 10, t: 10, b: 50 },
        xaxis,
        yaxis,
      }),
    ];
  },
};
function drawAll() {
  pictures.forEach((picture, index) => {
    const { remark } = picture;
    document.getElementById(`remark-${index}`).textContent = remark || "";
    Plotly.react(`picture-${index}`, ...draw[picture.kind](picture), { responsive: true, displayModeBar: false });
  });
}
drawAll();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
