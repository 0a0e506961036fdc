// What every picture of the page shares: its data, its colours, and bytes, times and axes as text.
"use strict";
const { pictures, colours } = JSON.parse(document.getElementById("data").textContent);
const SHADES = 4; // of one colour, so that neighbours can be told apart
const styleOf = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const isNarrow = () => matchMedia("(max-width: 40rem)").matches;
const colourOf = (label) => styleOf(`--${colours[label] || "other"}`);

function sizeText(bytes, digits) {
  for (const [unit, shift] of [
    ["TiB", 40],
    ["GiB", 30],
    ["MiB", 20],
    ["KiB", 10],
  ]) {
    if (bytes >= 2 ** shift) return `${(bytes / 2 ** shift).toFixed(digits || (shift >= 30 ? 2 : 1))} ${unit}`;
  }
  return `${bytes} B`;
}

function timeText(us) {
  if (us < 1000) return `${Math.round(us)} µs`;
  if (us < 1e6) return `${(us / 1e3).toPrecision(3)} ms`;
  if (us < 60e6) return `${(us / 1e6).toPrecision(3)} s`;
  return `${Math.floor(us / 60e6)} min ${Math.round((us % 60e6) / 1e6)} s`;
}

// A time on an axis whose ticks are so far apart: no more digits than tell them apart.
function tickText(us, step) {
  const [unit, size] = us >= 1e6 || step >= 1e5 ? ["s", 1e6] : us >= 1e3 || step >= 100 ? ["ms", 1e3] : ["µs", 1];
  const digits = Math.max(0, Math.ceil(Math.log10(size / step) - 1e-9));
  return `${(us / size).toFixed(digits)} ${unit}`;
}

const countText = (number) => number.toLocaleString("en-US");
const counted = (number, what) => `${countText(number)} ${what}${number === 1 ? "" : "s"}`;

// The largest of 1, 2, 5, 10, 20 ... that divides a span into at most so many parts.
function stepOf(span, most) {
  const raw = span / most;
  const ten = 10 ** Math.floor(Math.log10(raw));
  return [1, 2, 5, 10].map((n) => n * ten).find((n) => n >= raw);
}

// Round sizes between two, and their texts with as many digits as tell them apart.
function sizeTicks(highest, lowest = 0) {
  const step =
    [1, 2, 5]
      .flatMap((n) => [...Array(45).keys()].map((s) => n * 2 ** s))
      .sort((a, b) => a - b)
      .find((s) => (highest - lowest) / s <= 6) || 1;
  const first = Math.ceil(lowest / step);
  const values = [...Array(Math.floor(highest / step) - first + 1).keys()].map((n) => (first + n) * step);
  const texts = (digits) => values.map((bytes) => sizeText(bytes, digits).replace(/\.0+ /, " "));
  const tell_apart = [undefined, 3, 4, 5, 6, 9].map(texts).find((each) => new Set(each).size === each.length);
  return { tickvals: values, ticktext: tell_apart || texts() };
}

// A colour "#rrggbb" mixed with another, as the number that four bytes of a picture make.
function pixel(from, to = from, share = 0) {
  const part = (text, at) => parseInt(text.slice(at, at + 2), 16);
  const [r, g, b] = [1, 3, 5].map((at) => Math.round(part(from, at) * (1 - share) + part(to, at) * share));
  return ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
}

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}
