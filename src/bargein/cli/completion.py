"""`bargein completion SHELL`: prints a script that completes commands, options and session ids.

It is generated from the command line itself, so it never lags behind. Session ids are looked up at
the time of completion. docs/decisions/0134-completion-without-a-library.md says why no library does
this.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

from bargein.cli.arguments import command_line
from bargein.runtime.config import Config

SESSIONS = "bargein sessions list --limit 50 2>/dev/null | awk '{print $3}'"
TAKES_SESSION = ("--resume", "--session")
TAKES_FILE = ("--output-schema",)


@dataclass(frozen=True, slots=True)
class Level:
    """What may follow the words in `path`."""

    path: tuple[str, ...]
    words: tuple[tuple[str, str], ...]


def main(given: argparse.Namespace, config: Config) -> int:
    scripts = {"bash": bash, "zsh": zsh, "fish": fish}
    print(scripts[given.shell](list(levels(command_line(), ()))))
    return 0


def levels(parser: argparse.ArgumentParser, path: tuple[str, ...]) -> Iterator[Level]:
    words: list[tuple[str, str]] = []
    below: list[tuple[str, argparse.ArgumentParser]] = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            words += [(choice.dest, choice.help or "") for choice in action._choices_actions]
            below += action.choices.items()
        elif action.option_strings:
            words += [(option, action.help or "") for option in action.option_strings]
        elif action.choices:
            words += [(str(choice), "") for choice in action.choices]
    yield Level(path, tuple(words))
    for name, sub in below:
        yield from levels(sub, (*path, name))


def bash(found: list[Level]) -> str:
    cases = "\n".join(
        f"        '{' '.join(level.path)}') words='{' '.join(w for w, _ in level.words)}' ;;"
        for level in found
    )
    return f"""\
_bargein() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}}
    local path='' words='' i
    for ((i = 1; i < COMP_CWORD; i++)); do
        [[ ${{COMP_WORDS[i]}} == -* ]] || path="${{path:+$path }}${{COMP_WORDS[i]}}"
    done
    case $previous in {"|".join(TAKES_SESSION)}|show|export|rm)
        COMPREPLY=($(compgen -W "$({SESSIONS})" -- "$current")); return ;;
    esac
    case $previous in {"|".join(TAKES_FILE)})
        COMPREPLY=($(compgen -f -- "$current")); return ;;
    esac
    case $path in
{cases}
    esac
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _bargein bargein"""


def zsh(found: list[Level]) -> str:
    return f"autoload -U +X bashcompinit && bashcompinit\n{bash(found)}"


def fish(found: list[Level]) -> str:
    lines = ["complete -c bargein -f"]
    for level in found:
        for word, text in level.words:
            description = f" -d '{_quoted(text)}'" if text else ""
            lines.append(
                f"complete -c bargein{_condition(level, found)}{_as_fish(word)}{description}"
            )
    names = [option.removeprefix("--") for option in TAKES_SESSION]
    lines += [f"complete -c bargein -l {name} -x -a '({_in_fish()})'" for name in names]
    files = [option.removeprefix("--") for option in TAKES_FILE]
    lines += [f"complete -c bargein -l {name} -r -F" for name in files]
    return "\n".join(lines)


def _condition(level: Level, found: list[Level]) -> str:
    if not level.path:
        return " -n __fish_use_subcommand"
    here = f"__fish_seen_subcommand_from {level.path[-1]}"
    deeper = [f.path[-1] for f in found if f.path[:-1] == level.path]
    if deeper:
        here += f"; and not __fish_seen_subcommand_from {' '.join(deeper)}"
    return f" -n '{here}'"


def _as_fish(word: str) -> str:
    if word.startswith("--"):
        return f" -l {word.removeprefix('--')}"
    if word.startswith("-"):
        return f" -s {word.removeprefix('-')}"
    return f" -a {word}"


def _in_fish() -> str:
    return SESSIONS.replace("'", "\\'")


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")
