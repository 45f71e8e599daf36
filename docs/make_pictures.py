"""Draws the pictures of the pages that explain: boxes and arrows, readable on light and dark pages.

python docs/make_pictures.py
"""

from __future__ import annotations

from html import escape
from pathlib import Path

IMAGES = Path(__file__).resolve().parent / "images"
STYLE = """
text { font: 15px sans-serif; fill: #1f2328; } .small { font-size: 12.5px; fill: #59636e; }
rect { fill: #f6f8fa; stroke: #59636e; rx: 8px; } .group { fill: none; stroke-dasharray: 5 4; }
.page { fill: #ffffff; stroke: none; }
.core { fill: #fff1e5; stroke: #bc4c00; } .python { fill: #ddf4ff; stroke: #0969da; }
path { stroke: #59636e; fill: none; stroke-width: 1.6; } marker path { fill: #59636e; }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc; } .small { fill: #9198a1; } rect { fill: #151b23; stroke: #9198a1; }
  .group { fill: none; } .page { fill: #0d1117; stroke: none; }
  .core { fill: #3d2410; stroke: #f0883e; } .python { fill: #0c2d6b; stroke: #58a6ff; }
  path { stroke: #9198a1; } marker path { fill: #9198a1; }
}
"""


class Picture:
    """An SVG of boxes and arrows.

    Args:
        title: What it shows, for those who do not see it.
        width: In pixels.
        height: In pixels.
    """

    def __init__(self, title: str, width: int, height: int) -> None:
        self._size, self._title, self._parts = (width, height), title, list[str]()

    def box(self, x: int, y: int, width: int, height: int, *lines: str, kind: str = "") -> None:
        """A box with a name and smaller lines; ``group`` has its name at the top."""
        self._parts.append(f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}"/>')
        top = y + 22 if kind == "group" else y + (height - 19 * (len(lines) - 1)) // 2 + 5
        for number, line in enumerate(lines):
            style = ' class="small"' if number or kind == "group" else ""
            middle = x + width // 2
            self._parts.append(
                f'<text{style} x="{middle}" y="{top + 19 * number}" text-anchor="middle">{escape(line)}</text>'
            )

    def label(self, x: int, y: int, text: str) -> None:
        """Words beside the boxes."""
        self._parts.append(f'<text class="small" x="{x}" y="{y}" text-anchor="middle">{escape(text)}</text>')

    def arrow(self, *points: tuple[int, int], label: str = "", at: tuple[int, int] | None = None) -> None:
        """An arrow through points, and what goes along it."""
        way = " L ".join(f"{x} {y}" for x, y in points)
        self._parts.append(f'<path d="M {way}" marker-end="url(#head)"/>')
        if label:
            x, y = at or ((points[0][0] + points[-1][0]) // 2, (points[0][1] + points[-1][1]) // 2 - 7)
            self.label(x, y, label)

    def save(self, name: str) -> None:
        """Writes it into docs/images."""
        width, height = self._size
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            f'role="img" aria-label="{escape(self._title)}"><title>{escape(self._title)}</title><style>{STYLE}</style>'
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            'orient="auto"><path d="M 0 0 L 8 4 L 0 8 z"/></marker></defs>'
            # Of its own: the page around it may be dark where the reader's system is not.
            f'<rect class="page" width="{width}" height="{height}"/>'
        )
        (IMAGES / name).write_text("\n".join([head, *self._parts, "</svg>", ""]), "utf-8")


def packages() -> None:
    """Which room gives what to which."""
    picture = Picture("The rooms, and what goes from one to the next", 860, 330)
    picture.box(20, 30, 190, 120, "training/", kind="group")
    picture.box(40, 65, 150, 60, "training", "pipeline")
    picture.box(330, 30, 190, 120, "export/", kind="group")
    picture.box(350, 65, 150, 60, "export", "artifact")
    picture.box(640, 30, 200, 120, "serving/", kind="group")
    picture.box(655, 65, 80, 60, "serving", "deploy")
    picture.box(745, 65, 80, 60, "core", "Rust", kind="core")
    picture.box(640, 210, 200, 100, "clients/", kind="group")
    picture.box(660, 240, 160, 55, "clients", "wire, errors, cli")
    picture.box(330, 210, 190, 100, "loadtests/", kind="group")
    picture.box(350, 240, 150, 55, "loadtests", "Locust")
    picture.arrow((210, 95), (328, 95), label="trained model")
    picture.arrow((520, 95), (638, 95), label="version folders")
    picture.arrow((740, 208), (740, 152), label="gRPC, REST", at=(785, 185))
    picture.arrow((520, 260), (638, 260), label="load")
    picture.save("rooms.svg")


def request() -> None:
    """What becomes of a request."""
    picture = Picture("Life of a request", 880, 400)
    picture.box(20, 30, 140, 60, "client", "gRPC or REST")
    picture.box(220, 20, 640, 190, "native core (Rust threads)", kind="group")
    picture.box(240, 55, 130, 60, "read", "within limits", kind="core")
    picture.box(410, 55, 130, 60, "usual form?", "plan by key", kind="core")
    picture.box(580, 55, 110, 60, "admission", "or refusal", kind="core")
    picture.box(715, 55, 110, 60, "batch queue", "rows of many", kind="core")
    picture.box(240, 140, 130, 55, "write", "each its rows", kind="core")
    picture.box(220, 250, 640, 130, "Python", kind="group")
    picture.box(410, 290, 180, 65, "handlers, prediction", "all else, all errors", kind="python")
    picture.box(660, 290, 160, 65, "servable, backend", "computes without the GIL", kind="python")
    picture.arrow((160, 52), (238, 75))
    picture.arrow((370, 85), (408, 85))
    picture.arrow((540, 85), (578, 85), label="yes", at=(560, 78))
    picture.arrow((690, 85), (713, 85))
    picture.arrow((475, 115), (475, 288), label="no: whole", at=(515, 240))
    picture.arrow((770, 115), (770, 288), label="one call a batch", at=(822, 240))
    picture.arrow((720, 290), (720, 167), (372, 167), label="outputs", at=(620, 160))
    picture.arrow((590, 322), (658, 322))
    picture.arrow((410, 322), (305, 322), (305, 197), label="answer", at=(345, 315))
    picture.arrow((240, 167), (90, 167), (90, 92))
    picture.save("request.svg")


def version() -> None:
    """What becomes of a version."""
    picture = Picture("Life of a version", 860, 290)
    picture.box(20, 20, 400, 110, "modelyard export", kind="group")
    picture.box(35, 50, 110, 60, "convert", "each format")
    picture.box(165, 50, 110, 60, "verify", "against the source")
    picture.box(295, 50, 110, 60, "publish", "one rename")
    picture.box(20, 165, 820, 110, "modelyard serve", kind="group")
    for x, name, text in (
        (35, "see", "watch the folder"),
        (165, "check", "hashes, signatures"),
        (295, "load", "the best runtime"),
        (425, "warm up", "replay requests"),
        (555, "available", "answers"),
        (685, "unload", "all answered"),
    ):
        picture.box(x, 195, 115, 60, name, text)
        if x < 685:
            picture.arrow((x + 115, 225), (x + 128, 225))
    picture.arrow((145, 80), (163, 80))
    picture.arrow((275, 80), (293, 80))
    picture.arrow((350, 110), (350, 148), (92, 148), (92, 193))
    picture.box(470, 40, 370, 80, "what fails changes nothing", "the last good version stays, and the state says why")
    picture.save("version.svg")


def verification() -> None:
    """What is compared before a version is published."""
    picture = Picture("How a format is verified", 860, 300)
    picture.box(20, 115, 130, 65, "examples", "256 or more, real")
    picture.box(205, 40, 170, 65, "live model", "TensorFlow", kind="python")
    picture.box(205, 190, 170, 65, "format, loaded again", "in the runtime that serves", kind="core")
    picture.box(430, 115, 190, 65, "compare", "names, dtypes, shapes, values")
    picture.box(665, 40, 175, 65, "publish", "one rename")
    picture.box(665, 190, 175, 65, "error", "format, signature, output")
    picture.arrow((150, 135), (203, 90))
    picture.arrow((150, 160), (203, 205))
    picture.arrow((290, 105), (290, 188), label="convert", at=(322, 151))
    picture.arrow((375, 90), (428, 130), label="answers", at=(425, 95))
    picture.arrow((375, 205), (428, 165), label="answers", at=(425, 210))
    picture.arrow((620, 130), (663, 95), label="all equal", at=(620, 92))
    picture.arrow((620, 165), (663, 200), label="any differs", at=(618, 212))
    picture.save("verification.svg")


def batching() -> None:
    """Which requests are one batch."""
    picture = Picture("Requests that arrive while a batch is computed are the next batch", 860, 250)
    for y, label in ((55, "requests"), (130, "batches"), (205, "refused")):
        picture.label(55, y + 5, label)
    picture.label(800, 22, "time →")
    for x, name in ((115, "a"), (190, "b"), (235, "c"), (280, "d"), (390, "e"), (560, "f"), (605, "g"), (650, "h")):
        picture.box(x, 35, 36, 40, name)
    for x, width, names in ((120, 190, "a"), (325, 215, "b c d"), (555, 100, "e"), (670, 160, "f g")):
        picture.box(x, 110, width, 40, names, kind="python")
    picture.box(630, 185, 200, 40, "h: the queue is too long", kind="core")
    picture.arrow((133, 75), (133, 108))
    for x in (208, 253, 298):
        picture.arrow((x, 75), (340, 108))
    picture.arrow((408, 75), (565, 108))
    for x in (578, 623):
        picture.arrow((x, 75), (680, 108))
    picture.arrow((668, 75), (662, 92), (662, 183))
    picture.save("batching.svg")


if __name__ == "__main__":
    for draw in (packages, request, version, verification, batching):
        draw()
