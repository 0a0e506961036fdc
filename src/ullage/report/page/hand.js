// What the pointer and the keys do on the picture of blocks.
"use strict";

// Whether a drag from one place to another means heights, too, and not only a stretch of the run.
const isTall = ([from, to]) => Math.abs(from.row - to.row) > 50;

class Hand {
  constructor(explorer) {
    this.explorer = explorer;
    const strata = explorer.$("strata");
    const overview = explorer.$("overview");
    const segments = explorer.$("segments");
    strata.addEventListener("pointerdown", (event) => this.begin(event));
    strata.addEventListener("pointermove", (event) => this.move(event));
    strata.addEventListener("pointerup", (event) => this.end(event));
    strata.addEventListener("pointercancel", () => (this.from = explorer.dragged = null));
    strata.addEventListener("dblclick", () => explorer.choosePart(0));
    strata.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    strata.addEventListener("keydown", (event) => this.key(event));
    for (const kind of ["pointerdown", "pointermove"])
      overview.addEventListener(kind, (event) => event.buttons & 1 && this.travel(event));
    segments.addEventListener("pointermove", (event) => this.over(event));
    segments.addEventListener("click", (event) => this.pick(event));
    for (const canvas of [strata, segments]) canvas.addEventListener("pointerleave", () => this.tip(null));
  }

  begin(event) {
    this.from = this.explorer.strata.under(event);
    if (this.from) event.target.setPointerCapture(event.pointerId);
  }

  move(event) {
    const { explorer } = this;
    const here = explorer.strata.under(event);
    if (this.from && event.buttons) {
      if (!here) return;
      explorer.dragged = [this.from, here];
      explorer.strata.show((context, area) => linesOver(explorer, context, area));
      this.tip(null);
    } else this.tip(event, here && this.wordsOf(here));
  }

  end(event) {
    const { explorer, from } = this;
    const here = explorer.strata.under(event);
    [this.from, explorer.dragged] = [null, null];
    if (!from || !here) return explorer.showAll();
    if (Math.abs(here.share - from.share) * explorer.strata.size().width > 6) {
      const heights = [from.bytes, here.bytes].sort((a, b) => a - b);
      const places = [from.place, here.place].sort((a, b) => a - b);
      return isTall([from, here]) ? explorer.look(...places, heights) : explorer.look(...places);
    }
    explorer.panel.choose(blockAt(explorer.lives, here.moment, here.bytes, explorer.smallest));
    return explorer.chooseMoment(here.moment);
  }

  wheel(event) {
    if (!event.ctrlKey && !event.shiftKey) return; // the page scrolls
    event.preventDefault();
    const here = this.explorer.strata.under(event);
    if (!here) return;
    if (event.shiftKey) this.explorer.pan(Math.sign(event.deltaY || event.deltaX) * 0.1);
    else this.explorer.zoom(event.deltaY > 0 ? 1.25 : 0.8, here.place);
  }

  key(event) {
    const { explorer } = this;
    const actions = {
      ArrowLeft: () => explorer.chooseMoment(explorer.moment - 1),
      ArrowRight: () => explorer.chooseMoment(explorer.moment + 1),
      "+": () => explorer.zoom(0.5),
      "-": () => explorer.zoom(2),
      Escape: () => explorer.choosePart(0),
    };
    if (!actions[event.key]) return;
    event.preventDefault();
    actions[event.key]();
  }

  travel(event) {
    const { explorer } = this;
    const here = explorer.overview.under(event);
    if (!here) return;
    const half = (explorer.view.to - explorer.view.from) / 2;
    explorer.look(here.place - half, here.place + half);
  }

  wordsOf({ moment, bytes }) {
    const { lives, smallest } = this.explorer;
    const id = blockAt(lives, moment, bytes, smallest);
    if (id >= 0) return blockWords(lives, id);
    const [active, reserved] = [lives.active[moment], lives.reserved[moment]];
    const level = (what, size) => element("b", { textContent: `${sizeText(size)} ${what}` });
    const here = element("p", { textContent: momentText(lives, moment) });
    if (bytes < active) return [element("b", { textContent: "smaller blocks" }), here];
    return [level("in use", active), level("reserved", reserved), here];
  }

  over(event) {
    const { explorer } = this;
    const box = event.target.getBoundingClientRect();
    const found = segmentAt(explorer.panel.layout, explorer.lives, event.clientX - box.left, event.clientY - box.top);
    if (!found) return this.tip(null);
    const { segment, id, hole } = found;
    const where = element("p", {
      textContent: `in the segment of ${sizeText(lengthOf(segment))} at 0x${segment.start.toString(16)}`,
    });
    if (id >= 0) return this.tip(event, [...blockWords(explorer.lives, id), where]);
    return this.tip(event, [element("b", { textContent: `${sizeText(hole)} empty` }), where]);
  }

  pick(event) {
    const { explorer } = this;
    const box = event.target.getBoundingClientRect();
    const found = segmentAt(explorer.panel.layout, explorer.lives, event.clientX - box.left, event.clientY - box.top);
    explorer.panel.choose(found ? found.id : -1);
  }

  // Puts words beside the pointer, within the window.
  tip(event, words) {
    const tip = this.explorer.$("tip");
    tip.hidden = !words;
    if (!words) return;
    tip.replaceChildren(...words);
    const { width, height } = tip.getBoundingClientRect();
    const left = Math.min(event.clientX + 14, innerWidth - width - 8);
    const top = event.clientY + 18 + height > innerHeight ? event.clientY - height - 10 : event.clientY + 18;
    tip.style.transform = `translate(${Math.max(4, left)}px, ${Math.max(4, top)}px)`;
  }
}
