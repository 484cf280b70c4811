// Above the field: stops that the server has not received or not answered.

import { button, h, keyedList, setText } from "../dom.js";

export function stopsView(actions) {
  const list = h("ul", {});
  const about = { class: "stops", role: "alert", "aria-label": "Stops on their way" };
  const node = h("div", about, list);
  const draw = keyedList(list, () => stopRow(actions));
  const update = ({ stops, current, sessions }) => {
    const troubled = stops.filter(({ state }) => TOLD[state] !== undefined);
    node.hidden = !troubled.length;
    draw(
      troubled.map((stop) => {
        const title = sessions.find(({ id }) => id === stop.session)?.title || "another session";
        return rowOf(stop, stop.session === current ? "" : ` in “${title}”`);
      }),
      (each) => each.key,
    );
  };
  return { node, update };
}

const WHAT = { turn: "the turn", call: "the call", child: "the sub-agent" };
const TOLD = {
  unanswered: (where) => `The server has not answered your stop${where} yet.`,
  undelivered: (where, { problem, scope }) =>
    `Your stop${where} has not been delivered, and ${WHAT[scope]} may go on. ${problem} ` +
    "The page keeps trying.",
};

// Returns the same value again if nothing that is shown has changed.
const seen = new Map();
function rowOf(stop, where) {
  const words = TOLD[stop.state](where, stop);
  const last = seen.get(stop.key);
  if (last?.words === words) return last;
  const row = { key: stop.key, words };
  seen.set(stop.key, row);
  return row;
}

function stopRow(actions) {
  const words = h("span", {});
  const again = button("Try now", { does: () => actions.retryStop(key), name: "Try the stop now" });
  const leave = button("Give up", {
    does: () => actions.giveUpStop(key),
    name: "Give up the stop",
    kind: "quiet",
  });
  const node = h("li", {}, words, again, leave);
  let key = null;
  const update = (row) => {
    key = row.key;
    setText(words, row.words);
  };
  return { node, update };
}
