"""Fewer bytes, the same picture."""

from __future__ import annotations

import random

from shardyard_tui.pen import thin

RED, BLUE = "\x1b[38;5;1;48;5;233m", "\x1b[38;5;4;48;5;233m"


def cells(data: str) -> list[tuple[str, str, str, frozenset[str]]]:
    """A small terminal: each written character with its front, back and attributes."""
    out = []
    front = back = ""
    attributes: frozenset[str] = frozenset()
    at = 0
    while at < len(data):
        if data.startswith("\x1b[", at):
            end = next(i for i in range(at + 2, len(data)) if data[i].isalpha())
            if data[end] == "m":
                codes = (data[at + 2 : end] or "0").split(";")
                while codes:
                    code = codes.pop(0)
                    if code in ("38", "48"):
                        rest, codes = (codes[:4], codes[4:]) if codes[0] == "2" else (codes[:2], codes[2:])
                        front, back = (";".join(rest), back) if code == "38" else (front, ";".join(rest))
                    elif code in ("", "0"):
                        front = back = ""
                        attributes = frozenset()
                    elif 30 <= int(code) <= 37 or 90 <= int(code) <= 97:
                        front = code
                    elif 40 <= int(code) <= 47 or 100 <= int(code) <= 107:
                        back = code
                    elif code == "39":
                        front = ""
                    elif code == "49":
                        back = ""
                    else:
                        attributes |= {code}
            else:
                out.append((data[at : end + 1], "", "", frozenset()))
            at = end + 1
        else:
            out.append((data[at], front, back, attributes))
            at += 1
    return out


def test_a_background_that_stays_is_told_once() -> None:
    data = f"{RED}a\x1b[0m{BLUE}b\x1b[0m"
    assert thin(data) == "\x1b[38;5;1;48;5;233ma\x1b[38;5;4mb\x1b[0m"


def test_text_without_colours_is_left_alone() -> None:
    assert thin("plain\r\n") == "plain\r\n"
    assert thin("\x1b[?1049h") == "\x1b[?1049h"


def test_a_style_that_ends_is_ended() -> None:
    data = f"\x1b[1;38;5;1ma\x1b[0m{RED}b\x1b[0mc"
    assert cells(thin(data)) == cells(data)
    assert thin(data).endswith("\x1b[0mc")


def test_any_picture_stays_the_same_and_never_grows() -> None:
    rng = random.Random(5)
    styles = ["38;5;{}".format, "38;2;1;2;{}".format, "3{}".format, "9{}".format]
    for _ in range(300):
        data = ""
        for _ in range(rng.randrange(1, 30)):
            codes = [rng.choice(styles)(rng.randrange(8))] if rng.random() < 0.8 else []
            codes += [f"48;5;{rng.randrange(3)}"] if rng.random() < 0.7 else []
            codes += rng.sample(["1", "2", "4", "7"], rng.randrange(3))
            text = "".join(rng.choice("ab ─é") for _ in range(rng.randrange(4)))
            move = f"\x1b[{rng.randrange(1, 24)};{rng.randrange(1, 80)}H" if rng.random() < 0.3 else ""
            data += move + (f"\x1b[{';'.join(codes)}m{text}\x1b[0m" if codes else text)
        assert cells(thin(data)) == cells(data)
        assert len(thin(data)) <= len(data)
