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
    this.isDrawing = true;
  }

  // Builds the picture and draws it, and lets the page react between one part and the next.
  async open() {
    const { section, lives } = this;
    this.parts = partsOf(lives);
    this.panel = new Panel(section, lives, (text) => this.find(text));
    await pause();
    this.strata = new Stage(this.$("strata"), lives, { height: isNarrow() ? 300 : 380, hasAxes: true });
    this.overview = new Stage(this.$("overview"), lives, { height: 54, hasAxes: false });
    this.$("lead").textContent = this.lead();
    this.fill();
    this.$("axis").selectedIndex = lives.hasTime && !this.byTime ? 1 : 0;
    await pause();
    this.recolour();
    await pause();
    this.choosePart(lives.moments > MUCH ? 1 : 0);
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
      "Each column is a stretch of the run. Solid: a block was allocated during all of it; pale: during a part of it."
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
    return this.isDrawing || this.panel.isBusy;
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
    this.panel.show(this.moment, this.looks, this.query);
  }

  // The pictures over time, with the lines that lie upon them.
  showOver() {
    if (this.lives.moments < 2) return;
    this.overview.show((context, area) => frameOver(this, context, area));
    this.strata.show((context, area) => linesOver(this, context, area));
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
  await section.explorer.open();
}
for (const section of document.querySelectorAll("section.blocks"))
  explore(section).catch((error) => {
    section.querySelector(".lead").textContent = `This browser cannot show it: ${error.message}`;
    throw error;
  });
