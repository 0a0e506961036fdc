// What is shown of one moment: what was held by whom, what happens, the segments, and the stack of a chosen block.
"use strict";

class Panel {
  constructor(section, lives, find) {
    Object.assign(this, { section, lives, find, history: lives.history });
  }

  $(name) {
    return this.section.querySelector(`.${name}`);
  }

  // Colours with their labels, and the bytes of each at the moment.
  legend() {
    const { lives } = this;
    const { facet, names } = this.looks;
    const held = new Float64Array(COLOURED + 1);
    let pending = 0;
    for (const id of lives.alive(this.moment)) {
      if (lives.freed[id] <= this.moment) pending += lives.size[id];
      else held[Math.min(facet.of_block[id], COLOURED)] += lives.size[id];
    }
    const chip = (name, text) => {
      const mark = element("i");
      mark.style.background = `var(${name})`;
      return element("span", {}, mark, text);
    };
    const labels = facet.labels.slice(0, COLOURED);
    if (facet.labels.length > COLOURED) labels.push(`others (${countText(facet.labels.length - COLOURED)})`);
    const chips = labels.map((label, slot) => {
      const made = chip(names[slot], `${label}  ${sizeText(held[slot])}`);
      if (slot === COLOURED) return made;
      const button = element("button", { type: "button", title: "show these alone; again: all" }, ...made.childNodes);
      button.addEventListener("click", () => this.find(this.query === label ? "" : label));
      return button;
    });
    if (pending) chips.push(chip("--pending", `freed, another stream still uses it  ${sizeText(pending)}`));
    const { small_bytes, small_label } = this.history;
    if (small_bytes.length) chips.push(chip("--other", `${small_label}  ${sizeText(small_bytes[this.moment])}`));
    this.$("legend").replaceChildren(
      element("span", { textContent: `At ${lives.moments > 1 ? momentText(lives, this.moment) : "the end"}:` }),
      ...chips,
    );
  }

  // What is said of the moment, and then its segments, unless another one was asked for meanwhile.
  async show(moment, looks, query) {
    const shown = [moment, looks, this.$("segments").clientWidth];
    if (this.shown && shown.every((each, index) => each === this.shown[index])) return;
    Object.assign(this, { shown, moment, looks, query, isBusy: true });
    const { lives } = this;
    this.legend();
    this.$("event").value = this.history.event[moment];
    this.$("happens").textContent =
      (moment === this.history.moment ? `${this.history.moment_label}: ` : "") +
      happeningText(lives, moment) +
      (moment === this.history.moment && this.history.moment_remark ? `: ${this.history.moment_remark}` : "");
    const [allocated, active, reserved] = [lives.allocated[moment], lives.active[moment], lives.reserved[moment]];
    const pending =
      active > allocated ? `, ${sizeText(active - allocated)} freed but still used by another stream` : "";
    this.$("levels").textContent =
      `${sizeText(reserved)} reserved: ${sizeText(allocated)} allocated${pending}, ` +
      `${sizeText(Math.max(0, reserved - active))} cached (empty here). All drawn to one scale, by address.`;
    await pause();
    if (this.shown !== shown) return;
    const kinds = segmentsAt(lives, moment);
    await pause();
    if (this.shown === shown) this.showSegments(kinds);
  }

  showSegments(kinds) {
    this.isBusy = false;
    const { lives, moment } = this;
    const canvas = this.$("segments");
    const ratio = Math.min(devicePixelRatio, 2);
    this.layout = layoutOf(kinds, Math.max(40, canvas.clientWidth));
    Object.assign(canvas, { width: this.layout.width * ratio, height: this.layout.height * ratio });
    canvas.style.height = `${this.layout.height}px`;
    const context = canvas.getContext("2d");
    context.scale(ratio, ratio);
    const pending = styleOf("--pending");
    const colour = (id) => (lives.freed[id] <= moment ? pending : this.looks.styleOfBlock(id));
    drawSegments(context, this.layout, lives, colour, ({ name, segments }) => {
      const whole = segments.reduce((sum, { segment }) => sum + lengthOf(segment), 0);
      const used = segments.reduce((sum, { segment }) => sum + usedOf(segment, lives), 0);
      return `${name}: ${counted(segments.length, "segment")}, ${sizeText(whole)}, ${sizeText(whole - used)} empty`;
    });
  }

  // The whole stack of a block, below the picture.
  choose(id) {
    const box = this.$("chosen");
    box.hidden = id < 0;
    if (id < 0) return;
    box.querySelector("p").replaceChildren(...blockWords(this.lives, id, { isWhole: true }));
    const lines = [...framesOf(this.history, id)].map(({ text, is_own }) => (is_own ? "▸ " : "  ") + text);
    box.querySelector("pre").textContent = lines.join("\n");
  }
}
