// Asks the server again what is granted and what may be done about it, whenever the log says that
// it has changed. One request at a time; what changed meanwhile is asked for once more.

import { withGrants, withPermits } from "../state/permission.js";
import { api } from "../wire/api.js";
import { ApiProblem } from "../wire/problem.js";

export function followPermits(store) {
  let asking = false;
  let known = "";

  const ask = async (session, key) => {
    asking = true;
    try {
      const detail = await api.session(session.id);
      const { grants } = await api.grants(session.id);
      store.set(({ session: now }) =>
        now?.id === session.id ? { session: withGrants(withPermits(now, detail), grants) } : {},
      );
    } catch (problem) {
      // The next change, or the next connection, asks again.
      if (!(problem instanceof ApiProblem)) throw problem;
    } finally {
      known = key;
      asking = false;
    }
  };

  return ({ session, connection }) => {
    if (connection.state !== "open") known = "";
    if (session === null || connection.state !== "open" || asking) return;
    const key = `${session.id} ${session.permits.changes}`;
    if (key !== known) ask(session, key);
  };
}
