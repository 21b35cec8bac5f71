"""Print what the API tells of each case: ``python -m tests.cases.show [NAME...]``."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import warnings
from pathlib import Path

import torch

from tests.cases.loops import CASES
from tests.serving import Address, serving

MEASURES = ("absorbed_share", "unchanged_share", "forward_headroom")


def main(names: list[str]) -> None:
    torch.set_num_threads(1)
    # torch's own about a scheduler that steps after a skip: what one of the cases is about.
    warnings.simplefilter("ignore", UserWarning)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SCALESCOPE_SPOOL"] = str(Path(folder) / "spool")
        with serving(str(Path(folder) / "scalescope.db")) as served:
            for name in names or CASES:
                show(served, name)


def show(served: Address, name: str) -> None:
    """Windows, set-up, events and probes of one case, and the measures that its finding rests on."""
    run = CASES[name](served.url).run_id
    print(f"\n== {name}: {(CASES[name].__doc__ or '').splitlines()[0]}")
    facts = served.get(f"/api/runs/{run}/facts").json()
    for item in facts["items"]:
        print(f"  updates {item['first_step']} to {item['last_step']}: {json.dumps(item['facts'])}")
    print(f"  set-up: {json.dumps(facts['setup'])[:600]}")
    for event in served.get(f"/api/runs/{run}/events").json()["items"]:
        print(f"  update {event['step']} {event['kind']}: {json.dumps(event['data'])[:300]}")
    for probe in served.get(f"/api/runs/{run}/probes").json()["items"]:
        print(f"  probe: {json.dumps(probe)[:600]}")
    for measure in MEASURES:
        grid = served.get(f"/api/runs/{run}/layers?measure={measure}").json()
        print(f"  {measure}: {json.dumps(dict(zip(grid['parameters'], grid['values'], strict=True)))[:300]}")


if __name__ == "__main__":
    main(sys.argv[1:])
