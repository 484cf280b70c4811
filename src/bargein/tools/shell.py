"""Splits a shell command well enough to see which programs it starts. Pure, in linear time.

This is not a shell: it neither expands variables nor follows control structures. It splits at
everything that begins another command, removes quotes, and also reads inside substitutions and
double quotes. Here-documents and here-strings are the input of a command, not commands. Text that
is not shell at all, such as Python code, comes out as words too, which is enough for a seat belt.
"""

from dataclasses import dataclass, field

_BLANK = " \t\r"
_BEGINS_ANOTHER = ";&|()`\n"


@dataclass(slots=True)
class SimpleCommand:
    """One simple command. `entered` is the operator before it: `|`, `||`, `<(`, `$(`, `;` and so
    on. `is_text`: its first word was quoted, as commands are in code. `input` has the texts of its
    here-documents and here-strings; `expanded` those of them in which the shell substitutes."""

    entered: str = ""
    is_text: bool = False
    words: list[str] = field(default_factory=list)
    written_to: list[str] = field(default_factory=list)
    read_from: list[str] = field(default_factory=list)
    input: list[str] = field(default_factory=list)
    expanded: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _HereDocument:
    command: SimpleCommand
    end: str
    indented: bool
    quoted: bool


def read_commands(text: str, *, as_code: bool = False) -> list[SimpleCommand]:
    """Returns all simple commands in order. In code, brackets and commas count as blanks, so that
    a list of words looks like a command."""
    blank, another = (
        (_BLANK + ",", _BEGINS_ANOTHER + "[]") if as_code else (_BLANK, _BEGINS_ANOTHER)
    )
    reader = _Reader(text, blank, another, here_documents=not as_code)
    reader.read()
    return [
        command
        for command in reader.commands
        if command.words or command.written_to or command.read_from
    ]


class _Reader:
    def __init__(self, text: str, blank: str, another: str, *, here_documents: bool) -> None:
        self.commands = [SimpleCommand()]
        self._text = text
        self._blank = blank
        self._another = another
        self._word: list[str] = []
        self._has_word = False
        self._redirects = ""
        self._here_documents = here_documents
        self._awaited: list[_HereDocument] = []
        self._quoted_word = False
        self._at = 0

    def read(self) -> None:
        text = self._text
        while self._at < len(text):
            character = text[self._at]
            self._at += 1
            if character == "\\":
                self._add(text[self._at : self._at + 1].replace("\n", ""))
                self._at += 1
            elif character in "'\"":
                self._quoted(character)
            elif character in self._blank:
                self._end_word()
            elif character in "<>":
                self._redirect(character)
            elif character == "$" and text[self._at : self._at + 1] == "(":
                self._at += 1
                self._end_command("$(")
            elif character == "|" and text[self._at : self._at + 1] == "|":
                self._at += 1
                self._end_command("||")
            elif character == "|" and text[self._at : self._at + 1] == "&":
                self._at += 1
                self._end_command("|")
            elif character in self._another:
                self._end_command(character)
                if character == "\n" and self._awaited:
                    self._take_here_documents()
            elif character == "#" and not self._has_word:
                self._at = self._find("\n")
            else:
                self._add(character)
        self._end_word()

    def _find(self, what: str) -> int:
        found = self._text.find(what, self._at)
        return len(self._text) if found < 0 else found

    def _add(self, text: str) -> None:
        self._word.append(text)
        self._has_word = True

    def _quoted(self, quote: str) -> None:
        end = self._find(quote)
        if quote == '"':
            while end < len(self._text) and self._is_escaped(end):
                end = self._text.find(quote, end + 1)
                end = len(self._text) if end < 0 else end
        self._add(self._text[self._at : end])
        self._quoted_word = True
        self._at = end + 1

    def _is_escaped(self, at: int) -> bool:
        slashes = 0
        while at - slashes > self._at and self._text[at - slashes - 1] == "\\":
            slashes += 1
        return slashes % 2 == 1

    def _redirect(self, character: str) -> None:
        following = self._text[self._at : self._at + 1]
        if following == "(":
            self._at += 1
            self._end_command(character + "(")
            return
        if self._has_word and "".join(self._word).isdigit():
            # `2>file`: the number belongs to the redirection.
            self._word.clear()
            self._has_word = False
        self._end_word()
        if character == "<" and self._here_documents and self._text.startswith("<", self._at):
            three = self._text.startswith("<<", self._at)
            self._at += 2 if three else 1
            indented = not three and self._text.startswith("-", self._at)
            self._at += indented
            self._redirects = "<<<" if three else "<<-" if indented else "<<"
            return
        while self._text[self._at : self._at + 1] in (">", "<", "|", "&"):
            self._at += 1
        self._redirects = character

    def _take_here_documents(self) -> None:
        """Collects the lines up to each end marker as input of the command that asked for them."""
        for awaited in self._awaited:
            lines: list[str] = []
            while self._at < len(self._text):
                end = self._find("\n")
                line = self._text[self._at : end]
                self._at = end + 1
                if (line.lstrip("\t") if awaited.indented else line) == awaited.end:
                    break
                lines.append(line)
            body = "\n".join(lines)
            awaited.command.input.append(body)
            if not awaited.quoted:
                awaited.command.expanded.append(body)
        self._awaited = []

    def _end_word(self) -> None:
        if not self._has_word:
            return
        word = "".join(self._word)
        command = self.commands[-1]
        if self._redirects == ">":
            command.written_to.append(word)
        elif self._redirects == "<":
            command.read_from.append(word)
        elif self._redirects == "<<<":
            command.input.append(word)
            command.expanded.append(word)
        elif self._redirects:
            indented = self._redirects == "<<-"
            self._awaited.append(_HereDocument(command, word, indented, self._quoted_word))
        else:
            command.is_text = self._quoted_word if not command.words else command.is_text
            command.words.append(word)
        self._redirects = ""
        self._quoted_word = False
        self._word.clear()
        self._has_word = False

    def _end_command(self, entered: str) -> None:
        self._end_word()
        self._redirects = ""
        last = self.commands[-1]
        if not last.words and not last.written_to:
            last.entered = entered
        else:
            self.commands.append(SimpleCommand(entered))
