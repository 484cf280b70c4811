// What the highlighter knows of each language: how comments and strings begin and end, and which
// words are the language's own.

const words = (text) => new Set(text.split(" "));

const C_LIKE = { line: ["//"], block: [["/*", "*/"]], quotes: ['"', "'"] };

const python = {
  line: ["#"],
  block: [],
  quotes: ['"""', "'''", '"', "'"],
  keywords: words(
    "False None True and as assert async await break case class continue def del elif else " +
      "except finally for from global if import in is lambda match nonlocal not or pass raise " +
      "return self try while with yield",
  ),
};

const script = {
  ...C_LIKE,
  quotes: ['"', "'", "`"],
  keywords: words(
    "abstract any as async await boolean break case catch class const continue debugger declare " +
      "default delete do else enum export extends false finally for from function get if " +
      "implements import in instanceof interface keyof let namespace new null number of private " +
      "protected public readonly return satisfies set static string super switch this throw true " +
      "try type typeof undefined unknown var void while yield",
  ),
};

const c = {
  ...C_LIKE,
  keywords: words(
    "alignas auto bool break case catch char class const constexpr continue default define " +
      "delete do double else endif enum explicit extern false float for friend goto if ifdef " +
      "ifndef include inline int long mutable namespace new noexcept nullptr operator override " +
      "pragma private protected public register return short signed sizeof static struct switch " +
      "template this throw true try typedef typename union unsigned using virtual void volatile " +
      "while",
  ),
};

const java = {
  ...C_LIKE,
  quotes: ['"""', '"', "'"],
  keywords: words(
    "abstract as boolean break byte case catch char class companion const continue data default " +
      "do double else enum extends false final finally float for fun get if implements import in " +
      "int interface internal is lateinit long namespace new null object open operator override " +
      "package private protected public readonly record return sealed set short static string " +
      "struct super suspend switch synchronized this throw throws true try typealias using val " +
      "var virtual void volatile when while",
  ),
};

const go = {
  ...C_LIKE,
  quotes: ['"', "'", "`"],
  keywords: words(
    "any bool break byte case chan const continue default defer else error fallthrough false " +
      "float64 for func go goto if import int int64 interface map nil package range return rune " +
      "select string struct switch true type uint var",
  ),
};

// A single quote may begin a lifetime, so that it begins no string.
const rust = {
  ...C_LIKE,
  quotes: ['"'],
  keywords: words(
    "Err None Ok Self Some as async await bool break const continue crate dyn else enum extern " +
      "false fn for i32 i64 if impl in let loop match mod move mut pub ref return self static " +
      "str struct super trait true type u32 u64 u8 unsafe use usize where while",
  ),
};

const shell = {
  line: ["#"],
  block: [],
  quotes: ['"', "'"],
  keywords: words(
    "alias break case cd continue do done echo elif else esac eval exec exit export fi for " +
      "function if in local read readonly return set shift source then trap unset until while",
  ),
};

const sql = {
  line: ["--"],
  block: [["/*", "*/"]],
  quotes: ["'", '"'],
  anyCase: true,
  keywords: words(
    "add all alter and as asc begin between by case check column commit constraint create cross " +
      "default delete desc distinct drop else end exists foreign from full group having if in " +
      "index inner insert into is join key left like limit not null offset on or order outer " +
      "primary references returning right rollback select set table then union unique update " +
      "using values view when where with",
  ),
};

const css = { line: [], block: [["/*", "*/"]], quotes: ['"', "'"], keywords: words("important") };

const data = {
  line: ["#"],
  block: [],
  quotes: ['"""', '"', "'"],
  keywords: words("true false null yes no on off"),
  names: true,
};

const json = {
  line: [],
  block: [],
  quotes: ['"'],
  keywords: words("true false null"),
  names: true,
};

const markup = { line: [], block: [["<!--", "-->"]], quotes: ['"', "'"], tags: true };

const ruby = {
  line: ["#"],
  block: [],
  quotes: ['"', "'"],
  keywords: words(
    "and begin break case class def do else elsif end ensure false for if in module next nil not " +
      "or raise require rescue return self super then true unless until when while yield",
  ),
};

const php = { ...script, line: ["//", "#"] };

const NAMES = [
  [python, "python py pyi python3"],
  [script, "javascript js jsx mjs cjs ts tsx typescript"],
  [c, "c h cc cpp cxx hpp c++ objc"],
  [java, "java kt kotlin cs csharp scala swift dart"],
  [go, "go golang"],
  [rust, "rust rs"],
  [shell, "shell sh bash zsh console terminal dockerfile makefile"],
  [sql, "sql sqlite postgresql mysql"],
  [css, "css scss less"],
  [data, "yaml yml toml ini cfg conf properties"],
  [json, "json jsonl json5 jsonc"],
  [markup, "html htm xml svg vue"],
  [ruby, "ruby rb"],
  [php, "php"],
];

const LANGUAGES = new Map(
  NAMES.flatMap(([language, names]) => names.split(" ").map((name) => [name, language])),
);

/** Returns a language by the name that stands at a fence, or null. */
export function languageOf(name) {
  return LANGUAGES.get(name.trim().toLowerCase().split(/\s/)[0]) ?? null;
}

/** Returns the name of a file's language: the end of its name, for `languageOf`. */
export function languageOfPath(path) {
  const name = path.slice(path.lastIndexOf("/") + 1).toLowerCase();
  return name.includes(".") ? name.slice(name.lastIndexOf(".") + 1) : name;
}
