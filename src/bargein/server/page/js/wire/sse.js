// Parses server-sent events from text that comes in any pieces.

/** Feed it text; it calls `take` with the data of each event. */
export function sseReader(take) {
  let rest = "";
  let data = [];
  return (text) => {
    const lines = (rest + text).split(/\r\n|\n|\r(?!$)/);
    rest = lines.pop();
    for (const line of lines) {
      if (line === "") {
        if (data.length) take(data.join("\n"));
        data = [];
      } else if (line.startsWith("data:")) {
        data.push(line.slice(line[5] === " " ? 6 : 5));
      }
    }
  };
}
