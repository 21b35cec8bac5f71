"""The colours of the figures, light and dark: few, each with one meaning.

Vermilion is overflow and loss of updates, blue is flushing to zero, amber a warning, green an update gained.
They differ in lightness as well as in hue (checked for the common kinds of colour blindness), and no figure
tells two things apart by colour alone: marks differ in shape, lines in dash. The page's style sheet uses the
same values; a test compares them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PaletteName = Literal["light", "dark"]


@dataclass(frozen=True, slots=True)
class Palette:
    """Colours as ``#rrggbb``. ``ramp`` runs from nothing to most, for heat maps, evenly spaced."""

    name: PaletteName
    panel: str
    ink: str
    quiet: str
    grid: str
    nothing: str
    overflow: str
    flush: str
    warning: str
    good: str
    accent: str
    ramp: tuple[str, ...]

    def veil(self, colour: str, opacity: float) -> str:
        """``colour`` as a translucent fill."""
        red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
        return f"rgba({red},{green},{blue},{opacity})"


DARK = Palette(
    name="dark",
    panel="#151a21",
    ink="#e8edf3",
    quiet="#97a3b0",
    grid="#262e38",
    nothing="#1c232c",
    overflow="#f4735e",
    flush="#58a6f0",
    warning="#e5b04b",
    good="#4cc2a0",
    accent="#58a6f0",
    ramp=("#1c232c", "#1d4268", "#22679a", "#3b93b8", "#82b99f", "#cfd08a", "#f7e08a"),
)
LIGHT = Palette(
    name="light",
    panel="#ffffff",
    ink="#171c22",
    quiet="#5b6672",
    grid="#e4e8ec",
    nothing="#f1f4f6",
    overflow="#c0391f",
    flush="#1868c7",
    warning="#946200",
    good="#0b7a5c",
    accent="#1868c7",
    ramp=("#f1f4f6", "#dbe48f", "#92c58d", "#4aa0a5", "#2575a4", "#22497f", "#1d2450"),
)
PALETTES: dict[PaletteName, Palette] = {"dark": DARK, "light": LIGHT}
