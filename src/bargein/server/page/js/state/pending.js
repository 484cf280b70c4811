// What the page knows before the server does: a stop on its way, a session that is not made yet.

export const NEW = "new:";

/** Returns whether this id stands for a session that is not made yet. */
export function isNew(session) {
  return session?.startsWith(NEW) ?? false;
}

/** Returns the pending stop of the turn on the screen, or of one that is about to begin. */
export function pendingStop({ stops, current, session }) {
  const isFor = ({ turn }) => turn === null || session === null || turn === session.turn;
  return stops.find((each) => each.session === current && each.scope === "turn" && isFor(each));
}
