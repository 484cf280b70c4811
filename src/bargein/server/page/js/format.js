// Times, durations and amounts, in words for people.

/** 7 ms, 1.2 s, 3 min 05 s. */
export function duration(ms) {
  if (ms < 1000) return `${ms < 10 && ms % 1 ? ms.toFixed(1) : Math.round(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.floor(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${String(Math.floor(seconds % 60)).padStart(2, "0")} s`;
  return `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min`;
}

/** now, 5 min, 3 h, Tue, 4 Mar: how long ago, in few letters. */
export function ago(at, now) {
  const minutes = Math.floor((now - at) / 60_000);
  if (minutes < 1) return "now";
  if (minutes < 60) return `${minutes} min`;
  if (minutes < 24 * 60) return `${Math.floor(minutes / 60)} h`;
  const date = new Date(at);
  if (minutes < 6 * 24 * 60) return date.toLocaleDateString(undefined, { weekday: "short" });
  return date.toLocaleDateString(undefined, { day: "numeric", month: "short" });
}

/** 14:05, for a message. */
export function clock(at) {
  return new Date(at).toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit" });
}

/** 1 message, 2 messages. */
export function count(number, one, many = `${one}s`) {
  return `${number} ${number === 1 ? one : many}`;
}

/** 812 B, 34 KB, 1.2 MB. */
export function size(bytes) {
  if (bytes < 1024) return `${bytes} B`;
  if (bytes < 1024 * 1024) return `${Math.round(bytes / 1024)} KB`;
  return `${(bytes / 1024 / 1024).toFixed(1)} MB`;
}

/** Returns the name of a session. */
export function titleOf({ title }) {
  return title || "Untitled";
}

/** Returns what a session is doing, as shown: its phase, or something more specific. */
export function shownPhase({ phase, held, asking }) {
  if (asking && (phase === "running" || phase === "idle")) return "asking";
  return phase === "idle" && held ? "held" : phase;
}

/** Returns the first line, at most so many characters of it. */
export function firstLine(text, characters = 120) {
  const line = text.trim().split("\n")[0];
  return line.length > characters ? `${line.slice(0, characters - 1)}…` : line;
}
