// Draws what page.html.j2 leaves room for: each picture of the report, in the colours of the page.
"use strict";
const pictures = JSON.parse(document.getElementById("data").textContent);
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const isNarrow = () => matchMedia("(max-width: 40rem)").matches;
const ROLES = [
  "parameters",
  "gradients",
  "optimizer state",
  "activations",
  "temporaries",
  "inputs",
  "workspaces",
  "buffers",
];
const QUIET = ["rounding", "other lines", "freed, pending"];
const lines = []; // labels that are no roles, in the order in which the pictures name them
function colourOf(label) {
  if (ROLES.includes(label)) return colour(`--c${ROLES.indexOf(label)}`);
  if (label === "cached") return colour("--line");
  if (QUIET.includes(label)) return colour("--quiet");
  if (!lines.includes(label)) lines.push(label);
  return colour(`--c${lines.indexOf(label) % ROLES.length}`);
}

function sizeText(bytes) {
  for (const [unit, shift] of [
    ["TiB", 40],
    ["GiB", 30],
    ["MiB", 20],
    ["KiB", 10],
  ]) {
    if (bytes >= 2 ** shift) return `${(bytes / 2 ** shift).toFixed(shift >= 30 ? 2 : 1)} ${unit}`;
  }
  return `${bytes} B`;
}
function layout(more) {
  const axis = {
    gridcolor: colour("--line"),
    zerolinecolor: colour("--line"),
    linecolor: colour("--line"),
    automargin: true,
  };
  const base = {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: colour("--ink"), family: "system-ui, sans-serif", size: 13 },
    margin: { l: 60, r: 10, t: 10, b: 40 },
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 },
    hoverlabel: { align: "left" },
  };
  const result = { ...base, ...more };
  if (isNarrow()) result.legend = { orientation: "h", x: 0, y: -0.2, yanchor: "top", font: { size: 10 } };
  for (const name of ["xaxis", "yaxis"]) result[name] = { ...axis, ...(more[name] || {}) };
  return result;
}
function sizeTicks(highest) {
  const step =
    [1, 2, 5]
      .flatMap((n) => [...Array(45).keys()].map((s) => n * 2 ** s))
      .sort((a, b) => a - b)
      .find((s) => highest / s <= 6) || 1;
  const values = [...Array(Math.floor(highest / step) + 1).keys()].map((n) => n * step);
  return { tickvals: values, ticktext: values.map(sizeText) };
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
      customdata: values.map(sizeText),
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
      line: { color: colour("--quiet"), width: 1, dash: "dot" },
    }));
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
              font: { size: 11, color: colour("--quiet") },
            },
          ],
    );
    return [
      traces,
      layout({
        hovermode: "x unified",
        shapes,
        annotations,
        xaxis: { showticklabels: false, showgrid: false },
        yaxis: { ...sizeTicks(highest), rangemode: "tozero" },
      }),
    ];
  },
  icicle(picture) {
    const nodes = new Map([["", { label: "allocated", parent: null, value: 0, text: "", top: "" }]]);
    for (const [path, size, remark] of picture.leaves) {
      nodes.get("").value += size;
      path.forEach((name, depth) => {
        const id = JSON.stringify(path.slice(0, depth + 1));
        const node = nodes.get(id) || {
          label: name,
          parent: depth ? JSON.stringify(path.slice(0, depth)) : "",
          value: 0,
          text: "",
          top: ROLES.includes(path[0]) ? path[0] : "",
        };
        node.value += size;
        if (depth === path.length - 1) [node.text, node.top] = [remark, node.top || name];
        nodes.set(id, node);
      });
    }
    const all = [...nodes];
    return [
      [
        {
          type: "icicle",
          branchvalues: "total",
          ids: all.map(([id]) => id || "all"),
          labels: all.map(([, node]) => node.label),
          parents: all.map(([, node]) => (node.parent === null ? "" : node.parent || "all")),
          values: all.map(([, node]) => node.value),
          customdata: all.map(([, node]) => [sizeText(node.value), node.text]),
          texttemplate: "%{label}  %{customdata[0]}",
          hovertemplate:
            "%{label}<br>%{customdata[0]}, %{percentRoot:.1%} of allocated<br>%{customdata[1]}<extra></extra>",
          marker: {
            colors: all.map(([, node]) => (node.top ? colourOf(node.top) : colour("--line"))),
            line: { width: 1, color: colour("--card") },
          },
          tiling: { orientation: isNarrow() ? "v" : "h" },
          pathbar: { thickness: 22 },
          maxdepth: 6,
        },
      ],
      layout({ margin: { l: 0, r: 0, t: 26, b: 0 } }),
    ];
  },
  map(picture) {
    const labels = [...new Set(picture.strips.flatMap((strip) => strip.blocks.map((block) => block[2])))];
    labels.sort((a, b) => ROLES.indexOf(a) - ROLES.indexOf(b));
    const rows = picture.strips.map((strip, index) => index);
    const frame = {
      type: "bar",
      orientation: "h",
      name: "cached",
      y: rows,
      x: picture.strips.map((strip) => strip.size_bytes),
      marker: { color: colour("--line") },
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
        marker: { color: colourOf(label), line: { width: 0.5, color: colour("--card") } },
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
      good: ["--good", "circle", "fits"],
      unsure: ["--unsure", "diamond", "may not fit, or not with the margin"],
      bad: ["--bad", "x", "does not fit"],
    };
    const text = (y) => (picture.y_is_bytes ? sizeText(y) : `${y}`);
    const line = {
      type: "scatter",
      mode: "lines",
      name: picture.line_label,
      x: picture.line.map((p) => p[0]),
      y: picture.line.map((p) => p[1]),
      line: { color: colour("--quiet"), width: 2 },
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
          marker: { color: colour(name), symbol, size: 11 },
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
            line: { color: colour("--bad"), width: 1.5, dash: "dash" },
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
            font: { size: 12, color: colour("--bad") },
          },
        ]
      : [];
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
        xaxis: { title: { text: picture.x_label }, rangemode: "tozero" },
        yaxis,
      }),
    ];
  },
};
function drawAll() {
  pictures.forEach((picture, index) => {
    document.getElementById(`title-${index}`).textContent = picture.title;
    document.getElementById(`remark-${index}`).textContent = picture.remark || "";
    Plotly.react(`picture-${index}`, ...draw[picture.kind](picture), { responsive: true, displayModeBar: false });
  });
}
drawAll();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
