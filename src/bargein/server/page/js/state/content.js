// The content of a message, for people: the words, the text files among them, and the pictures. A
// text file is sent inside the words, between two marks that a model and this page both read.

const OPEN = '<file name="';
const CLOSE = "\n</file>";
const NAME_MAX = 200;

/** Returns the text of a file with the marks around it. */
export function fileText(name, text) {
  return `${OPEN}${name.replace(/["\n]/g, "_").slice(0, NAME_MAX)}">\n${text}${CLOSE}`;
}

/** Splits a text into the words and the files in it: `{words, files: [{name, text}]}`. */
export function splitFiles(text) {
  const files = [];
  let words = "";
  let at = 0;
  for (;;) {
    const open = text.indexOf(OPEN, at);
    const close = open === -1 ? -1 : text.indexOf(CLOSE, open);
    if (close === -1) break;
    const head = text.slice(open + OPEN.length, open + OPEN.length + NAME_MAX + 3);
    const nameEnd = head.indexOf('">\n');
    const first = open + OPEN.length + nameEnd + 3;
    if (nameEnd === -1 || first > close + 1) {
      words += text.slice(at, open + OPEN.length);
      at = open + OPEN.length;
      continue;
    }
    words += text.slice(at, open);
    files.push({ name: head.slice(0, nameEnd), text: text.slice(first, Math.max(first, close)) });
    at = close + CLOSE.length;
  }
  const said = words + text.slice(at);
  return { words: files.length ? said.replace(/\n{3,}/g, "\n\n").trim() : said, files };
}

/** Returns the pictures of a message's content, of which the page knows the kind and the size. */
export function imagesOf(content) {
  return content
    .filter((part) => part.type === "image")
    .map(({ media_type: kind, size }) => ({ kind: kind.replace("image/", ""), size }));
}
