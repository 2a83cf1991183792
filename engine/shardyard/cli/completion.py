"""`shardyard completion`: a completion script generated from the parsers, so that it cannot fall behind them."""

from __future__ import annotations

import argparse
from typing import Any

from shardyard.cli.exits import ExitCode


def add_parser(subparsers: Any) -> None:
    """Add the verb's arguments."""
    parser = subparsers.add_parser("completion", help="the shell's completion script")
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    print({"bash": bash, "zsh": zsh, "fish": fish}[args.shell](options_by_verb()))
    return ExitCode.DONE


def options_by_verb() -> dict[str, list[tuple[str, str, bool]]]:
    """For each verb its long options as (option, help, takes a value)."""
    from shardyard.cli import VERBS, parser

    root = parser(load=tuple(VERBS))
    actions = next(a for a in root._actions if isinstance(a, argparse._SubParsersAction))
    return {verb: sorted(_options(sub)) for verb, sub in actions.choices.items()}


def _options(parser: argparse.ArgumentParser) -> set[tuple[str, str, bool]]:
    found: set[tuple[str, str, bool]] = set()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for sub in action.choices.values():
                found |= _options(sub)
        elif action.help != argparse.SUPPRESS:
            found |= {(o, action.help or "", action.nargs != 0) for o in action.option_strings if o.startswith("--")}
    return found


def bash(verbs: dict[str, list[tuple[str, str, bool]]]) -> str:
    """For bash: verbs first, then the verb's options, else files."""
    cases = "\n".join(f"    {verb}) options='{' '.join(o for o, _, _ in options)}' ;;" for verb, options in verbs.items())
    return f"""_shardyard() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} options=''
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W '{" ".join(verbs)}' -- "$word") $(compgen -f -- "$word"))
    return
  fi
  case ${{COMP_WORDS[1]}} in
{cases}
  esac
  case $word in
    -*) COMPREPLY=($(compgen -W "$options" -- "$word")) ;;
    *) COMPREPLY=($(compgen -f -- "$word")) ;;
  esac
}}
complete -o filenames -F _shardyard shardyard"""


def zsh(verbs: dict[str, list[tuple[str, str, bool]]]) -> str:
    """For zsh."""
    cases = "\n".join(
        f"    {verb}) _arguments {' '.join(_zsh_option(*o) for o in options)} '*:file:_files' ;;"
        for verb, options in verbs.items()
    )
    return f"""#compdef shardyard
_shardyard() {{
  if (( CURRENT == 2 )); then
    _alternative 'verbs:verb:({" ".join(verbs)})' 'files:file:_files'
    return
  fi
  local verb=$words[2]
  shift words
  (( CURRENT-- ))
  case $verb in
{cases}
  esac
}}
if [ "$funcstack[1]" = _shardyard ]; then _shardyard "$@"; else compdef _shardyard shardyard; fi"""


def _zsh_option(option: str, help_line: str, takes_value: bool) -> str:
    text = help_line.replace("%%", "%").translate(str.maketrans("[]:", "() ", "'"))
    return f"'{option}[{text}]{':value:_files' if takes_value else ''}'"


def fish(verbs: dict[str, list[tuple[str, str, bool]]]) -> str:
    """For fish."""
    from shardyard.cli import VERBS

    lines = [f"complete -c shardyard -n __fish_use_subcommand -a {verb} -d {_quoted(VERBS[verb])}" for verb in verbs]
    for verb, options in verbs.items():
        for option, help_line, takes_value in options:
            text = _quoted(help_line.replace("%%", "%"))
            value = " -r" if takes_value else ""
            lines.append(f"complete -c shardyard -n '__fish_seen_subcommand_from {verb}' -l {option[2:]}{value} -d {text}")
    return "\n".join(lines)


def _quoted(text: str) -> str:
    """In single quotes, as fish reads them."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
