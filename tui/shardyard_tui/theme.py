"""Three looks: dark, light, and the terminal's own colours.

Every colour stands for one thing, and a letter or sign always says the same beside it.  The dark and light looks use colours of
the 256-colour cube, so that a terminal without 24-bit colour shows the same picture in fewer bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from rich.style import Style
from textual.theme import Theme

NAMES = ("dark", "light", "terminal")


@dataclass(frozen=True)
class Look:
    """A Textual theme for the few widgets that are not ours, and the styles that ours draw with."""

    theme: Theme
    styles: Mapping[str, Style]


def _look(name: str, dark: bool, ansi: bool, colours: Mapping[str, str]) -> Look:
    back = colours["back"]

    def style(front: str, *, bold: bool = False, dim: bool = False, underline: bool = False) -> Style:
        return Style(color=front, bgcolor=back, bold=bold or None, dim=dim or None, underline=underline or None)

    text, dim = colours["text"], colours["dim"]
    cursor = (
        Style(reverse=True, bold=True, color=text, bgcolor=back)
        if ansi
        else Style(color=colours["on_bar"], bgcolor=colours["bar"])
    )
    resting = Style(reverse=True, color=dim, bgcolor=back) if ansi else Style(color=text, bgcolor=colours["rest"])
    styles = {
        "text": style(text),
        "strong": style(text, bold=True),
        "dim": style(dim, dim=ansi),
        "faint": style(colours["faint"], dim=ansi),
        "head": style(colours["accent"], bold=True),
        "accent": style(colours["accent"]),
        "key": style(colours["accent"], bold=True),
        "ok": style(colours["ok"]),
        "warning": style(colours["warning"]),
        "error": style(colours["error"], bold=True),
        "mark": style(colours["mark"], bold=True),
        "match": style(colours["accent"], underline=True),
        "frame": style(colours["frame"], dim=ansi),
        "frame-focus": style(colours["accent"]),
        "cursor": cursor,
        "rest": resting,
        "weights": style(colours["accent"]),
        "masters": style(colours["ok"]),
        "optimizer": style(colours["mark"]),
        "other": style(dim),
        "wasted": style(colours["error"]),
    }
    variables = {"dim": dim, "bar": colours["bar"], "on-bar": colours["on_bar"]}
    if ansi:
        variables = {"ansi-background": "ansi_black", "ansi-foreground": "ansi_white"}
    theme = Theme(
        name=name,
        primary=_textual(colours["accent"]),
        foreground=_textual(text),
        background=_textual(back),
        surface=_textual(back),
        panel=_textual(back),
        success=_textual(colours["ok"]),
        warning=_textual(colours["warning"]),
        error=_textual(colours["error"]),
        accent=_textual(colours["accent"]),
        dark=dark,
        ansi=ansi,
        variables=variables,
    )
    return Look(theme, MappingProxyType(styles))


def _textual(colour: str) -> str:
    return colour if colour.startswith("#") else f"ansi_{colour}"


LOOKS: Mapping[str, Look] = {
    "dark": _look(
        "dark",
        True,
        False,
        {
            "back": "#121212",
            "text": "#d0d0d0",
            "dim": "#8a8a8a",
            "faint": "#585858",
            "accent": "#5fafd7",
            "ok": "#87af87",
            "warning": "#d7af5f",
            "error": "#d75f5f",
            "mark": "#af87d7",
            "frame": "#444444",
            "bar": "#005f87",
            "on_bar": "#ffffff",
            "rest": "#303030",
        },
    ),
    "light": _look(
        "light",
        False,
        False,
        {
            "back": "#ffffff",
            "text": "#262626",
            "dim": "#6c6c6c",
            "faint": "#9e9e9e",
            "accent": "#005f87",
            "ok": "#005f00",
            "warning": "#875f00",
            "error": "#af0000",
            "mark": "#5f00af",
            "frame": "#bcbcbc",
            "bar": "#005f87",
            "on_bar": "#ffffff",
            "rest": "#dadada",
        },
    ),
    "terminal": _look(
        "terminal",
        True,
        True,
        {
            "back": "default",
            "text": "default",
            "dim": "default",
            "faint": "default",
            "accent": "cyan",
            "ok": "green",
            "warning": "yellow",
            "error": "red",
            "mark": "magenta",
            "frame": "default",
            "bar": "default",
            "on_bar": "default",
            "rest": "default",
        },
    ),
}
