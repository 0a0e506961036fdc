// The colours of blocks: by what they are told apart (a facet), and by whether they match what is searched for.
"use strict";

const COLOURED = 7; // labels that have a colour of their own; all others share one

class Looks {
  constructor(lives, facet, matches) {
    Object.assign(this, { facet, matches });
    const { of_block } = facet;
    const lookOf = (this.lookOf = new Uint8Array(lives.count));
    for (let id = 0; id < lives.count; id++) {
      const slot = of_block[id] < COLOURED ? of_block[id] : COLOURED;
      lookOf[id] = (matches && !matches[id] ? COLOURED + 1 : slot) * SHADES + (id & (SHADES - 1));
    }
    this.refresh();
  }

  // Reads the colours anew: they differ in the dark.
  refresh() {
    const [card, ink] = [styleOf("--card"), styleOf("--ink")];
    this.names = Array.from({ length: COLOURED + 1 }, (_, slot) => this.nameOf(slot));
    const shades = this.names.flatMap((name) =>
      [0, 0.16, 0.1, 0.3].map((share, shade) => [styleOf(name), shade % 2 ? card : ink, share]),
    );
    for (let shade = 0; shade < SHADES; shade++) shades.push([styleOf("--other"), card, 0.55 + 0.1 * shade]);
    this.looks = Uint32Array.from(shades, (shade) => pixel(...shade));
    this.pale = Uint32Array.from(shades, ([from]) => pixel(from, card, 0.6));
    this.styles = Array.from(this.looks, (n) => `rgb(${n & 255} ${(n >> 8) & 255} ${(n >> 16) & 255})`);
    this.empty = pixel(card);
    this.edge = pixel(card);
    this.pending = pixel(styleOf("--pending"));
    this.small = pixel(styleOf("--other"), card, 0.5);
  }

  nameOf(slot) {
    if (slot === COLOURED) return "--other";
    const label = this.facet.labels[slot];
    return `--${colours[label] || `c${slot}`}`;
  }

  styleOfBlock(id) {
    return this.styles[this.lookOf[id]];
  }
}

// Which blocks have a line or a label that contains a text: 1 or 0 each.
function matching({ stacks, facets, blocks }, query) {
  const text = query.toLowerCase();
  const has = (each) => each.toLowerCase().includes(text);
  const frames = stacks.texts.map(has);
  const found = new Uint8Array(stacks.starts.length);
  for (let stack = 0; stack + 1 < stacks.starts.length; stack++)
    for (let at = stacks.starts[stack]; at < stacks.starts[stack + 1]; at++)
      if (frames[stacks.frames[at]]) found[stack] = 1;
  const matches = new Uint8Array(blocks.born.length);
  const { stack } = blocks;
  for (let id = 0; id < matches.length; id++) if (stack[id] >= 0) matches[id] = found[stack[id]];
  for (const { of_block, labels } of facets) {
    const is_found = Uint8Array.from(labels, (label) => (has(label) ? 1 : 0));
    for (let id = 0; id < matches.length; id++) matches[id] |= is_found[of_block[id]];
  }
  return matches;
}
