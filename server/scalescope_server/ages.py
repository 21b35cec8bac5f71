"""How old is old, as people write it: "30d", "12h"."""

from __future__ import annotations

import re

from scalescope_server.errors import SettingError

_UNITS_S = {"h": 3600.0, "d": 86_400.0, "w": 604_800.0}


def parse_age(text: str, *, field: str) -> float:
    """Seconds. Raises :class:`SettingError` for anything but a whole number of hours, days or weeks."""
    found = re.fullmatch(r"([1-9][0-9]{0,4})([hdw])", text.strip())
    if found is None:
        raise SettingError(f'expected an age such as "30d", "12h" or "8w", got {text!r}', field=field)
    return int(found[1]) * _UNITS_S[found[2]]
