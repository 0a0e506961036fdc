// The picture of blocks: what people choose (part, colours, sizes, a text, a moment), and what is then shown.
"use strict";

const SIZES = [0, 2 ** 16, 2 ** 20, 2 ** 24, 2 ** 27, 2 ** 30];
const BY_HAND = -1; // no part of the list, but what was chosen with the pointer
const AROUND = 4000; // events before and after the moment that matters, where no step is known
const MUCH = 30_000; // events that can be seen at once

class Explorer {
  constructor(section, lives) {
    this.section = section;
    this.lives = lives;
    const history = (this.history = lives.history);
    this.byTime = lives.hasTime && !lives.isMostlyIdle;
    this.moment = history.moment;
    this.smallest = 0;
    this.parts = partsOf(this.lives);
    this.strata = new Stage(this.$("strata"), this.lives, { height: isNarrow() ? 300 : 380, hasAxes: true });
    this.overview = new Stage(this.$("overview"), this.lives, { height: 54, hasAxes: false });
    this.$("lead").textContent = this.lead();
    this.fill();
    this.$("axis").selectedIndex = lives.hasTime && !this.byTime ? 1 : 0;
    this.recolour();
    this.choosePart(this.lives.moments > MUCH ? 1 : 0);
    new Hand(this);
    addEventListener("resize", () => this.redraw());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.recolour());
  }

  $(name) {
    return this.section.querySelector(`.${name}`);
  }

  lead() {
    const { lives, history } = this;
    if (lives.moments < 2) return "Nothing was recorded over time.";
    const length = lives.hasTime ? ` in ${timeText(history.time_us[lives.moments - 1])}` : "";
    return (
      `${counted(lives.count, "block")} over ${counted(history.event[lives.moments - 1], "event")}${length}. ` +
      "Solid: there all the while; pale: only part of the time that a column of the picture stands for."
    );
  }

  fill() {
    const put = (name, texts) => this.$(name).append(...texts.map((text, value) => new Option(text, value)));
    put(
      "part",
      this.parts.map((part) => part.name),
    );
    this.$("part").append(Object.assign(new Option("a part of the run", BY_HAND), { hidden: true }));
    put("axis", this.lives.hasTime ? ["time", "events"] : ["events"]);
    put(
      "facet",
      this.history.facets.map((facet) => facet.title),
    );
    put(
      "smallest",
      SIZES.map((size) => (size ? sizeText(size) : "any size")),
    );
    this.section.classList.toggle("still", this.lives.moments < 2);
    const act = (name, kind, action) => this.$(name).addEventListener(kind, action);
    act("part", "change", () => this.choosePart(Number(this.$("part").value)));
    act("axis", "change", () => this.chooseAxis(this.$("axis").selectedIndex === 0 && this.lives.hasTime));
    act("facet", "change", () => this.recolour());
    act("find", "input", () => {
      clearTimeout(this.typing);
      this.isDrawing = true;
      this.typing = setTimeout(() => this.recolour(), 150);
    });
    act("smallest", "change", () => this.chooseSmallest(SIZES[this.$("smallest").value]));
    act("before", "click", () => this.choosePart((this.part + this.parts.length - 1) % this.parts.length));
    act("behind", "click", () => this.choosePart((this.part + 1) % this.parts.length));
    act("in", "click", () => this.zoom(0.5));
    act("out", "click", () => this.zoom(2));
    act("left", "click", () => this.pan(-0.5));
    act("right", "click", () => this.pan(0.5));
    act("first", "click", () => this.chooseMoment(this.history.moment));
    act("previous", "click", () => this.chooseMoment(this.moment - 1));
    act("next", "click", () => this.chooseMoment(this.moment + 1));
    act("event", "change", () => this.chooseMoment(this.lives.momentOf(Number(this.$("event").value))));
  }

  // ---- what is chosen

  choosePart(part) {
    this.part = part;
    this.$("part").value = part;
    const { first, last } = this.parts[part];
    const [from, to] = [this.lives.place(first, this.byTime), this.lives.place(last, this.byTime)];
    this.show(from, Math.max(to, from + 1));
  }

  chooseAxis(byTime) {
    const [first, last] = [this.lives.at(this.view.from, this.byTime), this.lives.at(this.view.to, this.byTime)];
    this.byTime = byTime;
    this.show(
      this.lives.place(first, byTime),
      Math.max(this.lives.place(last, byTime), this.lives.place(first, byTime) + 1),
      this.view.heights,
    );
  }

  find(text) {
    this.$("find").value = text;
    this.recolour();
  }

  chooseSmallest(size) {
    this.smallest = size;
    this.redraw();
  }

  chooseMoment(moment) {
    this.moment = Math.max(0, Math.min(this.lives.moments - 1, moment));
    const place = this.lives.place(this.moment, this.byTime);
    const { from, to } = this.view;
    if (place < from || place > to) return this.look(place - (to - from) / 2, place + (to - from) / 2);
    return this.showAll();
  }

  // Shows what lies between two places of the axis, and two heights in bytes, chosen by hand.
  look(from, to, heights = this.view.heights) {
    this.$("part").value = BY_HAND;
    this.show(from, to, heights);
  }

  show(from, to, heights = null) {
    const end = this.lives.place(this.lives.moments - 1, this.byTime) || 1;
    const span = Math.min(Math.max(to - from, this.byTime ? 2 : 8), end);
    const start = Math.max(0, Math.min((from + to - span) / 2, end - span));
    this.view = { from: start, to: start + span, byTime: this.byTime, heights };
    this.redraw();
  }

  zoom(factor, around = (this.view.from + this.view.to) / 2) {
    this.look(around - (around - this.view.from) * factor, around + (this.view.to - around) * factor);
  }

  pan(share) {
    const by = share * (this.view.to - this.view.from);
    this.look(this.view.from + by, this.view.to + by);
  }

  // ---- what is shown

  recolour() {
    const [facet, query] = [this.history.facets[this.$("facet").value || 0], this.$("find").value.trim()];
    const matches = query === this.query ? this.looks.matches : query ? matching(this.history, query) : null;
    this.query = query;
    this.looks = new Looks(this.lives, facet, matches);
    this.$("found").textContent = "";
    if (this.view) this.redraw();
    if (matches) setTimeout(() => this.looks.matches === matches && (this.$("found").textContent = this.foundText()));
  }

  // Whether something that was asked for is still to be shown.
  get isBusy() {
    return this.isDrawing || this.isShowing;
  }

  // Draws what is looked at, and then, where its colours or sizes have changed, the whole run above it.
  async redraw() {
    this.isDrawing = true;
    const show = () => {
      this.showAll();
      this.section.dataset.drawn = "yes";
    };
    if (this.lives.moments > 1 && !(await this.strata.draw(this.view, this.looks, this.smallest, show))) return;
    show();
    const end = this.lives.place(this.lives.moments - 1, this.byTime) || 1;
    const whole = { from: 0, to: end, byTime: this.byTime, heights: null };
    const drawn = [this.looks, this.looks.looks, this.smallest, this.byTime, this.overview.size().width];
    const is_same = this.whole && drawn.every((each, index) => each === this.whole[index]);
    if (this.lives.moments > 1 && !is_same) {
      if (!(await this.overview.draw(whole, this.looks, this.smallest))) return;
      this.whole = drawn;
      this.showOver();
    }
    this.isDrawing = false;
  }

  foundText() {
    const { matches } = this.looks;
    if (!matches) return "";
    const { lives } = this;
    const level = new Float64Array(lives.moments + 1);
    let count = 0;
    for (let id = 0; id < lives.count; id++) {
      if (!matches[id]) continue;
      count++;
      level[lives.born[id]] += lives.size[id];
      level[Math.min(lives.freed[id], lives.moments)] -= lives.size[id];
    }
    let [now, most] = [0, 0];
    for (let moment = 0; moment < lives.moments; moment++) most = Math.max(most, (now += level[moment]));
    return count ? `${counted(count, "block")} found: at most ${sizeText(most)} at once` : "no block found";
  }

  showAll() {
    this.showOver();
    this.showMoment();
  }

  // The pictures over time, with the lines that lie upon them.
  showOver() {
    if (this.lives.moments < 2) return;
    this.overview.show((context, area) => this.frame(context, area));
    this.strata.show((context, area) => this.lines(context, area));
  }

  // In the overview: what is shown below.
  frame(context, { width, height }) {
    const { view } = this.overview.drawn;
    const [from, to] = [this.view.from, this.view.to].map(
      (place) => ((place - view.from) / (view.to - view.from)) * width,
    );
    context.fillStyle = styleOf("--veil");
    context.fillRect(0, 0, from, height);
    context.fillRect(to, 0, width - to, height);
    context.strokeStyle = styleOf("--ink");
    context.strokeRect(from + 0.5, 0.5, Math.max(2, to - from - 1), height - 1);
  }

  // Over the blocks: reserved memory, the room, ends of steps, and the moment that is shown.
  lines(context, area) {
    const { view, columns, floor, top } = this.strata.drawn;
    const { left, width, height } = area;
    const x = (moment) => left + ((this.lives.place(moment, view.byTime) - view.from) / (view.to - view.from)) * width;
    const y = (bytes) => area.top + height * (1 - (bytes - floor) / (top - floor));
    context.save();
    context.beginPath();
    context.rect(left, area.top, width, height);
    context.clip();
    context.strokeStyle = context.fillStyle = styleOf("--quiet");
    context.beginPath();
    columns.forEach((moment, column) =>
      context.lineTo(left + (column / columns.length) * width, y(this.lives.reserved[moment])),
    );
    context.lineTo(left + width, y(this.lives.reserved[columns[columns.length - 1]]));
    context.stroke();
    const inside = this.history.step_ends.filter((moment) => x(moment) > left && x(moment) < left + width);
    context.setLineDash([2, 4]);
    if (inside.length < width / 12)
      for (const moment of inside) context.strokeRect(Math.round(x(moment)) + 0.5, area.top, 0, height);
    context.setLineDash([]);
    const { limit_bytes: limit } = this.history;
    const label = (text, colour, bytes, align, down) => {
      Object.assign(context, { font: "12px system-ui, sans-serif", textAlign: align, fillStyle: colour });
      context.fillText(text, align === "left" ? left + 6 : left + width - 6, y(bytes) + down);
    };
    let most = 0;
    for (const moment of columns) most = Math.max(most, this.lives.reserved[moment]);
    const is_below_limit = limit !== null && limit < top && y(most) - y(limit) < 16;
    label(`at most ${sizeText(most)} reserved`, styleOf("--quiet"), most, "right", is_below_limit ? 14 : -4);
    if (limit !== null && limit < top) {
      label(this.history.limit_label, styleOf("--bad"), limit, "left", -4);
      context.fillRect(left, y(limit), width, 1.5);
    }
    context.fillStyle = styleOf("--ink");
    context.fillRect(x(this.moment) - 0.75, area.top, 1.5, height);
    context.restore();
    if (this.dragged) {
      context.fillStyle = styleOf("--veil");
      const [from, to] = this.dragged.map(({ share }) => left + share * width);
      const [one, other] = isTall(this.dragged)
        ? this.dragged.map(({ row }) => area.top + row)
        : [area.top, area.top + height];
      context.fillRect(Math.min(from, to), Math.min(one, other), Math.abs(to - from), Math.abs(other - one));
    }
  }

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
  async showMoment() {
    const shown = [this.moment, this.looks, this.looks.looks, this.$("segments").clientWidth];
    if (this.shown && shown.every((each, index) => each === this.shown[index])) return;
    this.shown = shown;
    this.isShowing = true;
    const { lives, moment } = this;
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
    this.isShowing = false;
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

// What can be looked at: the whole, the surroundings of the moment that matters, and each step.
function partsOf(lives) {
  const { history, moments } = lives;
  const ends = [...history.step_ends];
  const steps = [...ends, moments - 1].map((last, index) => ({ first: index ? ends[index - 1] : 0, last }));
  const matters = steps.find(({ last }) => last >= history.moment) || steps[0];
  const around = ends.length
    ? { ...matters, name: `the step of ${history.moment_label}` }
    : {
        first: Math.max(0, history.moment - AROUND),
        last: Math.min(moments - 1, history.moment + AROUND),
        name: `around ${history.moment_label}`,
      };
  const whole = { name: "the whole run", first: 0, last: moments - 1 };
  const named = ends.length ? steps.map((step, index) => ({ ...step, name: `step ${index + 1}` })) : [];
  if (named.length && named[named.length - 1].first >= moments - 1) named.pop();
  else if (named.length) named[named.length - 1].name = "after the last whole step";
  return [whole, around, ...named];
}

async function explore(section) {
  const lives = await Lives.of(await unpacked(section.dataset.packed));
  await pause();
  section.explorer = new Explorer(section, lives);
}
for (const section of document.querySelectorAll("section.blocks"))
  explore(section).catch((error) => {
    section.querySelector(".lead").textContent = `This browser cannot show it: ${error.message}`;
    throw error;
  });
