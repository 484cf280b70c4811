// Replaces characters that are invisible, or that move others, by their code points. The server
// does this for titles and approvals (contracts/visible.py); this is for text that the page makes
// itself.

const HIDDEN = new RegExp(
  "[\\p{Cc}\\p{Cf}\\p{Cs}\\p{Co}\\p{Cn}\\p{Zl}\\p{Zp}\\p{Default_Ignorable_Code_Point}\\u2800]" +
    "|(?! )\\p{Zs}",
  "gu",
);
const SHOWN = ["\n", "\t", "\ufe0f"];

export function visible(text) {
  return text.replace(HIDDEN, (each) => (SHOWN.includes(each) ? each : named(each)));
}

function named(character) {
  return `<U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}>`;
}
