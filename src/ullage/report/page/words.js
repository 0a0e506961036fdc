// What is said of a block and of a moment, as elements whose texts are only ever texts.
"use strict";

const momentText = (lives, moment) =>
  (moment ? `event ${countText(lives.history.event[moment])}` : "the beginning") +
  (lives.hasTime ? ` (${timeText(lives.history.time_us[moment])})` : "");

const labelsOf = (lives, id) =>
  lives.history.facets.map(({ title, labels, of_block }) => [title, labels[of_block[id]]]);

function lifeText(lives, id) {
  const [born, freed] = [lives.born[id], lives.freed[id]];
  const from = born ? `allocated at ${momentText(lives, born)}` : "there from the beginning";
  if (freed >= lives.moments) return `${from}, not freed`;
  const took = lives.hasTime ? timeText(lives.history.time_us[freed] - lives.history.time_us[born]) : "";
  const lived = took || counted(freed - born, "event");
  const late = lives.gone[id] > freed ? "; then another stream still used it" : "";
  return `${from}, freed at ${momentText(lives, freed)}: lived ${lived}${late}`;
}

function* framesOf({ stacks, blocks }, id) {
  const stack = blocks.stack[id];
  if (stack < 0) return;
  for (let at = stacks.starts[stack]; at < stacks.starts[stack + 1]; at++)
    yield { text: stacks.texts[stacks.frames[at]], is_own: stacks.is_own[stacks.frames[at]] };
}

// A line of a stack with the last two parts of its path.
const shortened = (text) => text.replace(/^.*[\\/]([^\\/]+[\\/][^\\/]+:\d+ )/, "$1");

// A block in a few lines: its size and labels, its life, and the innermost lines of its stack that are the user's.
function blockWords(lives, id, { isWhole = false } = {}) {
  const [[, first], ...others] = labelsOf(lives, id);
  const frames = [...framesOf(lives.history, id)];
  const more = frames.length ? `click: its whole stack, ${counted(frames.length, "line")}` : "no stack was recorded";
  const own = frames.filter((frame) => frame.is_own).slice(0, 4);
  return [
    element("b", { textContent: `${sizeText(lives.size[id])}  ${first}` }),
    ...others.map(([title, label]) => element("p", { textContent: `${title}: ${label}` })),
    element("p", { textContent: lifeText(lives, id) }),
    ...(isWhole ? [] : own.length ? own : frames.slice(0, 4)).map(({ text }) =>
      element("code", { textContent: shortened(text) }),
    ),
    element("small", { textContent: isWhole ? "" : more }),
  ];
}

function happeningText(lives, moment) {
  const found = lives.happening(moment);
  if (!found) return `${momentText(lives, moment)}`;
  const [[, label]] = labelsOf(lives, found.id);
  return `${momentText(lives, moment)}: ${found.what} ${sizeText(lives.size[found.id])} of ${label}`;
}
