"""What the demo can show. Each scenario is one setting of a real training; nothing is injected."""

from __future__ import annotations

from dataclasses import dataclass

# Under a minute on two cores, and long enough for the scale to grow again.
DEFAULT_STEPS = 600


@dataclass(frozen=True, slots=True)
class Scenario:
    """The two settings of the loss scaler that decide how a training goes, and why."""

    name: str
    init_scale: float
    growth_interval: int
    reason: str


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            "healthy",
            init_scale=2.0**24,
            growth_interval=200,
            reason="starts some octaves too high, skips until the scale fits, then probes once in 200 updates",
        ),
        Scenario(
            "thrash",
            init_scale=2.0**24,
            growth_interval=20,
            reason="doubles after only 20 good updates, hits the ceiling again and again, loses one update in twenty",
        ),
    )
}
