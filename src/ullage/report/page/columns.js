// Reads back what columns.py has packed: objects of texts and numbers, with columns as typed arrays.
"use strict";

async function unpacked(id) {
  const letters = atob(document.getElementById(id).textContent);
  const bytes = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i++) bytes[i] = letters.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const whole = new Uint8Array(await new Response(stream).arrayBuffer());
  const length = new DataView(whole.buffer).getUint32(0, true);
  const plain = JSON.parse(new TextDecoder().decode(whole.subarray(4, 4 + length)));
  return withColumns(plain, whole.subarray(4 + length));
}

async function withColumns(thing, bytes) {
  if (thing === null || typeof thing !== "object") return thing;
  if (Array.isArray(thing) && typeof thing[0] !== "object") return thing;
  if ("width" in thing && "sums" in thing) {
    await pause();
    return columnOf(thing, bytes);
  }
  for (const name of Object.keys(thing)) thing[name] = await withColumns(thing[name], bytes);
  return thing;
}

// Lets the page react to people before more is computed.
const pause = () => new Promise((go_on) => setTimeout(go_on));

function columnOf({ at, n, width, unit, low, sums }, bytes) {
  const values = new Float64Array(n);
  for (let plane = width - 1; plane >= 0; plane--) {
    const first = at + plane * n;
    for (let i = 0; i < n; i++) values[i] = values[i] * 256 + bytes[first + i];
  }
  let before = 0;
  let most = 0;
  for (let i = 0; i < n; i++) {
    const value = values[i] * unit + low + before;
    values[i] = value;
    if (sums) before = value;
    if (value > most) most = value;
  }
  return most < 2 ** 31 && low > -(2 ** 31) ? Int32Array.from(values) : values;
}
