"""Draw boxes, lines and text in one style, as SVG that is readable on light and dark pages."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape

WIDTH = 760
# The colours of each kind of thing: (fill, stroke) on light pages, then on dark pages.
_COLOURS = {
    "plain": ("#f0f3f6", "#818b98", "#262c36", "#7d8590"),
    "new": ("#ddebff", "#0969da", "#12315c", "#58a6ff"),
    "done": ("#d9f2df", "#1a7f37", "#12381f", "#3fb950"),
    "late": ("#ffe8cc", "#bc4c00", "#4d2a0b", "#f0883e"),
    "bad": ("#ffe0dd", "#cf222e", "#4e1517", "#ff7b72"),
    "gone": ("none", "#818b98", "none", "#7d8590"),
}
_WORDS = {
    "text": ("#1f2328", "#e6edf3"),
    "faint": ("#57606a", "#a2abb5"),
    "blue": ("#0550ae", "#79c0ff"),
    "green": ("#116329", "#56d364"),
    "orange": ("#953800", "#ffa657"),
    "red": ("#a40e26", "#ff7b72"),
}


def _style() -> str:
    light, dark = [], []
    for name, (fill, stroke, dark_fill, dark_stroke) in _COLOURS.items():
        light.append(f".{name}{{fill:{fill};stroke:{stroke}}}")
        dark.append(f".{name}{{fill:{dark_fill};stroke:{dark_stroke}}}")
        light.append(f".{name}-line{{fill:none;stroke:{stroke};stroke-width:1.5}}.{name}-tip{{fill:{stroke}}}")
        dark.append(f".{name}-line{{stroke:{dark_stroke}}}.{name}-tip{{fill:{dark_stroke}}}")
    for name, (colour, dark_colour) in _WORDS.items():
        light.append(f".w-{name}{{fill:{colour}}}")
        dark.append(f".w-{name}{{fill:{dark_colour}}}")
    light.append(".page{fill:#ffffff;stroke:#d0d7de}.gone{stroke-dasharray:3 3}")
    dark.append(".page{fill:#151a21;stroke:#3d444d}")
    fonts = (
        "text{font:13px system-ui,-apple-system,'Segoe UI','DejaVu Sans',sans-serif}"
        "text.code{font:12px ui-monospace,'SF Mono',Menlo,'DejaVu Sans Mono',monospace}"
        "text.head{font-weight:600}"
    )
    return f"{fonts}{''.join(light)}@media (prefers-color-scheme:dark){{{''.join(dark)}}}"


@dataclass
class Sheet:
    """A picture in progress. Later shapes cover earlier ones. Coordinates are pixels from the upper left corner."""

    height: int
    title: str
    parts: list[str] = field(default_factory=list)

    def box(self, x: float, y: float, width: float, height: float, kind: str = "plain", words: str = "") -> None:
        """A box with text in its middle."""
        self.parts.append(f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3"/>')
        if words:
            self.words(x + width / 2, y + height / 2 + 4.5, words, at="middle")

    def cells(self, x: float, y: float, width: float, labels: list[str], kind: str = "plain") -> None:
        """A row of boxes, each with a label."""
        for index, label in enumerate(labels):
            self.parts.append(
                f'<rect class="{kind}" x="{x + index * width:g}" y="{y:g}" width="{width:g}" height="26" rx="2"/>'
            )
            self.code(x + index * width + width / 2, y + 17, label, at="middle")

    def words(self, x: float, y: float, words: str, colour: str = "text", at: str = "start", head: str = "") -> None:
        """A line of text; `at` is the part of it at x: start, middle or end."""
        self.parts.append(
            f'<text class="w-{colour}{head}" x="{x:g}" y="{y:g}" text-anchor="{at}">{escape(words, quote=False)}</text>'
        )

    def head(self, x: float, y: float, words: str) -> None:
        """A heading."""
        self.words(x, y, words, head=" head")

    def code(self, x: float, y: float, words: str, colour: str = "text", at: str = "start") -> None:
        """A line of code; spaces are kept."""
        self.words(x, y, words.replace(" ", "\u00a0"), colour, at, head=" code")

    def line(self, *points: tuple[float, float], kind: str = "plain") -> None:
        """A line through some points."""
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        dashes = ' stroke-dasharray="4 3"' if kind == "gone" else ""
        self.parts.append(f'<polyline class="{kind}-line"{dashes} points="{path}"/>')

    def arrow(self, *points: tuple[float, float], kind: str = "plain") -> None:
        """A line through some points that ends in an arrow head; its last part is horizontal or vertical."""
        self.line(*points, kind=kind)
        (from_x, from_y), (x, y) = points[-2:]
        dx, dy = (x > from_x) - (x < from_x), (y > from_y) - (y < from_y)
        if abs(x - from_x) < abs(y - from_y):
            dx = 0
        else:
            dy = 0
        back_x, back_y = x - 8 * dx, y - 8 * dy
        wing = f"{back_x - 4 * dy:g},{back_y - 4 * dx:g} {back_x + 4 * dy:g},{back_y + 4 * dx:g}"
        self.parts.append(f'<polygon class="{kind}-tip" points="{x:g},{y:g} {wing}"/>')

    def svg(self) -> str:
        """The picture as SVG, on a background."""
        page = f'<rect class="page" x="0.5" y="0.5" width="{WIDTH - 1}" height="{self.height - 1}" rx="8"/>'
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{self.height}" '
            f'viewBox="0 0 {WIDTH} {self.height}" role="img">\n<title>{escape(self.title)}</title>\n'
            f"<style>{_style()}</style>\n{page}\n" + "\n".join(self.parts) + "\n</svg>\n"
        )
