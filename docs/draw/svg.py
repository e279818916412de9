"""Small SVG pictures: shapes as text, with numbers rounded so that the same picture is the same file everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

# Okabe and Ito's colours: apart for every common colour blindness.
COLOURS = ("#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#F0E442", "#0072B2")
INK, PAPER = "#222222", "#ffffff"


class Picture:
    """A picture that grows with what is drawn into it."""

    def __init__(self, width: float, height: float) -> None:
        self.size = width, height
        self._shapes: list[str] = []

    def polygon(self, corners: Sequence[tuple[float, float]], fill: str, line: str = INK, width: float = 0.8) -> None:
        """Draw a closed polygon through some corners (x, y)."""
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
        self._shapes.append(
            f'<polygon points="{points}" fill="{fill}" stroke="{line}" stroke-width="{width}" stroke-linejoin="round"/>'
        )

    def box(self, x: float, y: float, width: float, height: float, fill: str, line: str = INK) -> None:
        """Draw a rectangle whose upper left corner is (x, y)."""
        self.polygon([(x, y), (x + width, y), (x + width, y + height), (x, y + height)], fill, line)

    def line(self, start: tuple[float, float], end: tuple[float, float], colour: str = INK, dashes: str = "") -> None:
        """Draw a straight line, dashed where `dashes` says so, as "4 3"."""
        (x1, y1), (x2, y2) = start, end
        dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
        self._shapes.append(
            f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"{dashed}/>'
        )

    def arrow(self, start: tuple[float, float], end: tuple[float, float], words: str = "") -> None:
        """Draw an arrow to the right, with words above it."""
        self.line(start, end)
        x, y = end
        self.polygon([(x + 1, y), (x - 7, y - 4), (x - 7, y + 4)], INK)
        if words:
            self.text((start[0] + x) / 2, y - 7, words, size=11)

    def text(
        self, x: float, y: float, words: str, *, size: float = 12, anchor: str = "middle", bold: bool = False
    ) -> None:
        """Write words whose base line is at y; (x, y) is where `anchor` says: "start", "middle" or "end"."""
        weight = ' font-weight="bold"' if bold else ""
        self._shapes.append(
            f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}"{weight}>{escape(words)}</text>'
        )

    def __str__(self) -> str:
        width, height = self.size
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
            f'height="{height:.0f}" font-family="Helvetica, Arial, sans-serif" fill="{INK}">'
        )
        paper = f'<rect width="100%" height="100%" fill="{PAPER}"/>'
        return "\n".join([head, paper, *self._shapes, "</svg>", ""])

    def write(self, path: Path) -> None:
        """Write the picture to a file."""
        path.write_text(str(self))


def lighter(colour: str, share: float) -> str:
    """Mix a colour with white: 0 leaves it as it is, 1 is white."""
    parts = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return "#" + "".join(f"{round(part + (255 - part) * share):02x}" for part in parts)


def darker(colour: str, share: float) -> str:
    """Mix a colour with black: 0 leaves it as it is, 1 is black."""
    return "#" + "".join(f"{round(int(colour[place : place + 2], 16) * (1 - share)):02x}" for place in (1, 3, 5))
