// Blocks with their lives: what is alive at a moment, and how much that is.
"use strict";

class Lives {
  static async of(history) {
    const lives = new Lives();
    const { born, life, wait, size_bytes } = history.blocks;
    Object.assign(lives, { history, born, size: size_bytes, count: born.length, moments: history.event.length });
    await pause();
    lives.freed = born.map((moment, id) => moment + life[id]);
    const waits = wait.some((moments) => moments);
    lives.gone = waits ? lives.freed.map((moment, id) => moment + wait[id]) : lives.freed;
    await pause();
    lives.allocated = lives.sums(born, lives.freed, size_bytes);
    lives.active = waits ? lives.sums(born, lives.gone, size_bytes) : lives.allocated;
    await pause();
    lives.setUp(history);
    return lives;
  }

  // Lives of segments, levels that are summed up from them, and whether there are times.
  setUp(history) {
    this.segmentGone = history.segments.born.map((moment, id) => moment + history.segments.life[id]);
    this.reserved = this.sums(history.segments.born, this.segmentGone, history.segments.size_bytes);
    if (history.small_bytes.length) {
      const levels = this.active === this.allocated ? [this.allocated] : [this.allocated, this.active];
      for (const level of levels)
        level.forEach((bytes, moment) => (level[moment] = bytes + history.small_bytes[moment]));
    }
    this.hasTime = history.time_us.length === this.moments && this.moments > 1;
    this.isMostlyIdle = this.hasTime && this.idle() > 0.6;
  }

  // Bytes at every moment of things that come and go.
  sums(comes, goes, sizes) {
    const level = new Float64Array(this.moments + 1);
    for (let id = 0; id < comes.length; id++) {
      level[comes[id]] += sizes[id];
      level[Math.min(goes[id], this.moments)] -= sizes[id];
    }
    for (let moment = 1; moment < this.moments; moment++) level[moment] += level[moment - 1];
    return level.subarray(0, this.moments);
  }

  // The share of the time that lies in long pauses between two events: on an axis of time little else would be seen.
  idle() {
    const times = this.history.time_us;
    const whole = times[this.moments - 1];
    let pauses = 0;
    for (let moment = 1; moment < this.moments; moment++) {
      const pause = times[moment] - times[moment - 1];
      if (pause > whole / 50) pauses += pause;
    }
    return pauses / Math.max(1, whole);
  }

  // The first block that is allocated after a moment: blocks stand in the order of their allocation.
  after(moment) {
    let [low, high] = [0, this.count];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.born[middle] > moment) high = middle;
      else low = middle + 1;
    }
    return low;
  }

  // The blocks that are there at a moment, the oldest first; what was found last is kept.
  alive(moment) {
    if (this.known && this.known.moment === moment) return this.known.ids;
    const ids = [];
    const { gone } = this;
    const end = this.after(moment);
    for (let id = 0; id < end; id++) if (gone[id] > moment) ids.push(id);
    this.known = { moment, ids };
    return ids;
  }

  // What happens at a moment: the block that is allocated, freed or usable again, if any.
  happening(moment) {
    const { born, freed, gone } = this;
    const last = this.after(moment) - 1;
    if (moment > 0 && last >= 0 && born[last] === moment) return { what: "allocates", id: last };
    for (let id = last; id >= 0; id--) {
      if (freed[id] === moment) return { what: "frees", id };
      if (gone[id] === moment) return { what: "can reuse", id };
    }
    return null;
  }

  // Where a moment lies on the axis: its time, or its number.
  place(moment, byTime) {
    return byTime ? this.history.time_us[moment] : moment;
  }

  // The last moment at or before a place on the axis.
  at(place, byTime) {
    if (byTime) return this.last(this.history.time_us, place);
    return Math.max(0, Math.min(this.moments - 1, Math.floor(place)));
  }

  // The last moment of an event or before it.
  momentOf(event) {
    return this.last(this.history.event, event);
  }

  // The last of values that rise which is not above a limit; the first where there is none.
  last(values, limit) {
    let [low, high] = [0, this.moments - 1];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (values[middle] <= limit) low = middle;
      else high = middle - 1;
    }
    return low;
  }
}
