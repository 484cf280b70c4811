// Reads streams of entries from standard input, has the page's own reducer reduce each of them, and
// writes what the page has in common with the Python picture (projection.py) after every so many
// entries, and after the last.

const [folder, every] = process.argv.slice(2);
const { emptySession, reduce } = await import(`${folder}/state/session.js`);
const { waitingMessages } = await import(`${folder}/state/inbox.js`);

const by = (things, change) =>
  Object.fromEntries(Object.entries(things).map(([id, each]) => [id, change(each)]));

const call = ({ name, turn, status, result, summary, asking, output }) => {
  const over = status !== "running" && status !== "background";
  const end = over ? "" : (output ?? "").slice(-1000);
  return [name, turn ?? "", status, result ?? "", summary ?? "", asking ?? false, end];
};

const ITEMS = {
  message: ({ id }) => ["message", id],
  withdrawn: ({ text }) => ["withdrawn", text],
  answer: ({ turn, text, partial, unkept }) => ["answer", turn, text, partial, unkept ?? ""],
  call: ({ id }) => ["call", id],
  question: ({ id }) => ["question", id],
  settled: ({ turn }) => ["settled", turn],
  notice: () => ["notice"],
};

function project(state) {
  return {
    title: state.title ?? "",
    ended: state.ended,
    turn: state.turn,
    stopping: state.phase === "stopping",
    held: state.held,
    inbox: waitingMessages(state).map(({ id, lane }) => [id, lane]),
    messages: by(state.messages, ({ text, fate, turn }) => [text, fate, turn ?? null]),
    turns: by(state.turns, ({ outcome, error, hidden, interrupts }) => [
      outcome,
      error ?? "",
      hidden ?? false,
      interrupts.length,
    ]),
    calls: by(
      Object.fromEntries(Object.entries(state.calls).filter(([, each]) => each.listed)),
      call,
    ),
    questions: by(state.questions, ({ open, answer, by: who, turn, callId }) => [
      open,
      answer ?? null,
      who ?? "",
      turn,
      callId,
    ]),
    children: by(state.children, ({ state: now, outcome, summary, task, detached }) => [
      now === "running",
      outcome ?? null,
      summary ?? "",
      task,
      detached,
    ]),
    used: [state.used.requests, state.used.input, state.used.output],
    saying: state.live.filter(({ text }) => text).map(({ turn, text }) => [turn, text]),
    items: state.items.map((item) => ITEMS[item.kind](item)),
  };
}

let input = "";
for await (const chunk of process.stdin) input += chunk;
const streams = JSON.parse(input).map((entries) => {
  let state = emptySession("s");
  return entries.flatMap((entry, place) => {
    state = reduce(state, entry, place);
    return place % every === 0 || place === entries.length - 1 ? [project(state)] : [];
  });
});
process.stdout.write(JSON.stringify(streams));
