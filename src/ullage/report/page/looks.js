// The colours of blocks: by what they are told apart (a facet), and by whether they match what is searched for.
"use strict";

const COLOURED = 7; // labels that have a colour of their own; all others share one

class Looks {
  constructor(lives, facet, query) {
    this.facet = facet;
    this.matches = query ? matching(lives.history, query) : null;
    const { of_block } = facet;
    this.lookOf = new Uint8Array(lives.count);
    for (let id = 0; id < lives.count; id++) {
      const hidden = this.matches && !this.matches[id] ? COLOURED + 1 : Math.min(of_block[id], COLOURED);
      this.lookOf[id] = hidden * SHADES + (id % SHADES);
    }
    this.refresh();
  }

  // Reads the colours anew: they differ in the dark.
  refresh() {
    const [card, ink] = [styleOf("--card"), styleOf("--ink")];
    this.names = Array.from({ length: COLOURED + 1 }, (_, slot) => this.nameOf(slot));
    const base = [...this.names.map((name) => styleOf(name)), styleOf("--line")];
    const shades = base.flatMap((colour) =>
      Array.from({ length: SHADES }, (_, shade) => [colour, shade % 2 ? card : ink, [0, 0.16, 0.1, 0.3][shade]]),
    );
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
  const labels = facets.map((facet) => ({ of_block: facet.of_block, is_found: facet.labels.map(has) }));
  return Uint8Array.from(blocks.born, (_, id) => {
    const stack = blocks.stack[id];
    return (stack >= 0 && found[stack]) || labels.some(({ of_block, is_found }) => is_found[of_block[id]]) ? 1 : 0;
  });
}
