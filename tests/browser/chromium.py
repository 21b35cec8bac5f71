"""The Chromium that the tests drive: found, or installed where that needs no question, or asked for.

Run as a script before the tests: it exits with 0 when there is one, else tells the remedy in one line.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome", "chrome")

# The address bar's popups are pages of their own, loaded for each window: a fifth of what a page of ours costs. The
# others are Playwright's own list, which ours takes the place of: only the last one counts.
WITHOUT = (
    "WebUIOmniboxPopup",
    "WebUIOmniboxAimPopup",
    "AimEnabled",
    "AvoidCorsURLLoaderRestartOnRedirect",
    "AvoidUnnecessaryBeforeUnloadCheckSync",
    "DestroyProfileOnBrowserClose",
    "HttpsFirstBalancedModeAutoEnable",
    "HttpsUpgrades",
    "LensOverlay",
    "MediaRouter",
    "NetworkTimeServiceQuerying",
    "OptimizationHints",
    "PaintHolding",
    "PreconnectToSearch",
    "ThirdPartyStoragePartitioning",
)

# No sandbox: containers have no user namespaces. Beside a driver that listens V8 wants to know the place of each call,
# and would read all of Plotly a second time for it. The rest keeps it from calling home.
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--js-flags=--no-enable-lazy-source-positions",
    f"--disable-features={','.join(WITHOUT)}",
)

REMEDY = (
    "No Chromium found for the browser tests: install it (Debian: apt-get install chromium) "
    "or set CHROMIUM to its path."
)


def find() -> Path | None:
    """The path in ``CHROMIUM``, else the first known name on the path."""
    named = os.environ.get("CHROMIUM")
    found = named or next(filter(None, map(shutil.which, NAMES)), None)
    return Path(found) if found else None


def install() -> None:
    """Install Debian's package, where apt and root are there."""
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        return
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update"], ["install", "-y", "--no-install-recommends", "chromium", "fonts-dejavu-core"]):
        subprocess.run(["apt-get", "-qq", *command], env=environment, check=False)


def main() -> int:
    if find() is None:
        sys.stderr.write("No Chromium found, installing Debian's.\n")
        install()
    if find() is None:
        sys.stderr.write(REMEDY + "\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
